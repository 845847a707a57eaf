"""What operators see of a gateway: its metrics, and its state as one object. No user data.

The event loop counts and takes snapshots; any thread can turn a snapshot into text.
"""

from collections.abc import Mapping
from typing import Any, Final

from forebay import __version__
from forebay.gateway.placement.dispatcher import Dispatcher
from forebay.gateway.placement.engine_state import EngineState
from forebay.gateway.placement.power import Power
from forebay.metrics.kinds import Unit
from forebay.metrics.registry import SECONDS, Registry
from forebay.observe.exposition import written_anew

REFUSALS: Final = (400, 401, 403, 404, 405, 408, 413, 421, 429, 502, 503)


class GatewayMetrics:
    """Every metric of a gateway."""

    def __init__(self) -> None:
        self.registry = registry = Registry()
        self.requests = registry.counter(
            "gateway_requests", "Requests that engines answered.", ("engine", "reason")
        )
        self.refused = registry.counter(
            "gateway_refused",
            "Requests that the gateway answered itself, by status.",
            ("status",),
        )
        self.refused.preset([(str(status),) for status in REFUSALS])
        self.retried = registry.counter(
            "gateway_retried",
            "Requests that were sent to a second engine, by the first.",
            ("engine",),
        )
        self.prefilled = registry.counter(
            "gateway_prefilled",
            "Prompts that an engine was given to compute for another, by what became of it.",
            ("engine", "outcome"),
        )
        self.documents = registry.counter(
            "gateway_documents",
            "Requests that marked their documents, by whether their order was kept or changed.",
            ("order",),
        )
        self.broken = registry.counter(
            "gateway_broken", "Answers that broke off, by engine.", ("engine",)
        )
        self.gone = registry.counter(
            "gateway_clients_gone", "Requests whose client went before the answer's end."
        )
        self.tokens = registry.counter(
            "gateway_tokens",
            "Tokens of answered requests: prompt (uncached, as told or expected) and answer.",
            ("key", "kind"),
            Unit.TOKENS,
        )
        self.queue_s = registry.histogram(
            "gateway_queue_seconds", "Time that requests waited for an engine.", SECONDS
        )
        self.ttft_s = registry.histogram(
            "gateway_ttft_seconds", "Time from an engine being given a request to its first bytes.",
            SECONDS,
        )  # fmt: skip
        self.expected_s = registry.histogram(
            "gateway_ttft_expected_seconds", "The same, as it was expected when placing.", SECONDS
        )
        self.swaps = registry.counter(
            "gateway_swaps", "Times that an engine of a shared GPU was woken.", ("engine",)
        )
        self.wake_s = registry.histogram(
            "gateway_wake_seconds", "Time that waking an engine took, its first token included.",
            SECONDS, ("engine",),
        )  # fmt: skip
        self.kept = registry.counter(
            "gateway_kept", "Answers that were kept while their engine slept.", ("engine",)
        )
        self.swap_failed = registry.counter(
            "gateway_swap_failures",
            "Ways to have an engine sleep or wake that failed; the next way is tried.",
            ("engine", "step"),
        )
        self._add_gauges(registry)

    def _add_gauges(self, registry: Registry) -> None:
        self.awake = registry.gauge(
            "gateway_engine_awake", "Whether an engine of a shared GPU is awake.", ("engine",)
        )
        self.up = registry.gauge("gateway_engine_up", "Whether an engine is used.", ("engine",))
        self.running = registry.gauge("gateway_running", "Requests at an engine now.", ("engine",))
        self.prefill = registry.gauge(
            "gateway_prefill_tokens",
            "Uncached prompt tokens at an engine whose first token has not come.",
            ("engine",),
            Unit.TOKENS,
        )
        self.waiting = registry.gauge("gateway_waiting", "Requests that wait, by key.", ("key",))

    def snapshot(self, dispatcher: Dispatcher) -> dict[str, dict[str, Any]]:
        """All metrics as they are now."""
        engines = dispatcher.engines.items()
        self.up.replace({(name,): float(each.is_used) for name, each in engines})
        shared = [(name, each) for name, each in engines if each.rest]
        self.awake.replace({(name,): float(each.power is Power.AWAKE) for name, each in shared})
        self.running.replace({(name,): each.running for name, each in engines})
        self.prefill.replace({(name,): round(each.prefill_tokens) for name, each in engines})
        self.waiting.replace({(key,): count for key, count in _waiting(dispatcher).items()})
        return self.registry.snapshot()

    def text(self, snapshot: Mapping[str, Mapping[str, Any]]) -> bytes:
        """A snapshot in the text format of Prometheus."""
        return "".join(
            written_anew(each, list(snapshot[each.name]["values"]))
            for each in self.registry.definitions()
            if snapshot[each.name]["values"]
        ).encode()


def status(dispatcher: Dispatcher) -> dict[str, Any]:
    """The state of a gateway, for /status."""
    return {
        "version": __version__,
        "engines": [_engine(each) for each in dispatcher.engines.values()],
        "models": {
            model.name: {
                "engines": [engine.setting.name for engine in model.engines],
                "waiting": model.waiting,
                "bytes_per_token": round(model.bytes_per_token, 2),
                "answer_tokens": round(model.answer_tokens),
            }
            for model in dispatcher.models.values()
        },
        "keys": [
            {
                "name": name,
                "tenant": key.setting.tenant,
                "weight": key.setting.weight,
                "requests": key.requests,
                "waiting": waiting,
            }
            for (name, key), waiting in zip(
                dispatcher.keys.states.items(), _waiting(dispatcher).values(), strict=True
            )
        ],
    }


def _waiting(dispatcher: Dispatcher) -> dict[str, int]:
    counts = dict.fromkeys(dispatcher.keys.states, 0)
    for queue in dispatcher.queues:
        for request in queue:
            counts[request.key] += 1
    return counts


def _engine(engine: EngineState) -> dict[str, Any]:
    setting = engine.setting
    return {
        "name": setting.name,
        "model": setting.model,
        "url": setting.url,
        "host": setting.host,
        "gpu": setting.gpu,
        "pool": setting.pool,
        "role": setting.role,
        "condition": engine.condition.value,
        "why": engine.why,
        "running": engine.running,
        "max_num_seqs": setting.max_num_seqs,
        "started": engine.started,
        **(_sharing(engine) if engine.rest else {}),
        "prefill_tokens": round(engine.prefill_tokens),
        "kv_tokens": engine.kv_tokens,
        "prefill_tokens_per_s": round(engine.prefill_rate),
        "load_tokens_per_s": round(engine.load_rate),
    }


def _sharing(engine: EngineState) -> dict[str, Any]:
    return {
        "power": engine.power.value,
        "power_why": engine.power_why,
        "rest": engine.rest,
        "wake_s": round(engine.wake_s, 2),
    }
