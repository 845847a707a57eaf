"""What the connector tells vLLM's own logger and its /metrics page.

The name of a count is dotted words: the first one selects the metric, the rest is its label, so a
new reason needs no line here. Whether the engine shares is a gauge with a series per state, one of
which is 1. docs/serve.md explains the metrics to operators.
"""

from typing import TYPE_CHECKING, Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from forebay.engines.sharing import SharingState

if TYPE_CHECKING:
    from forebay.engines.vllm.observing.spans import RequestSpans

_COUNTS: Final = "counts"
_HOOKS: Final = "hooks"
_STATE: Final = "state"
_REASON: Final = "reason"
_REQUESTS: Final = "requests"  # outcomes of requests, if vLLM traces (`observing.traced`)
_REQUESTS_MAX: Final = 1 << 10  # kept when steps are merged
_BUCKETS: Final = (0.00005, 0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2)
# First word of a count → (metric, what it counts, its label or "").
_METRICS: Final = {
    "lookups": ("forebay:lookups", "Requests that the pool was asked about", ""),
    "loads": ("forebay:loads", "Requests with a prefix from the pool", ""),
    "loaded": ("forebay:loaded", "What was loaded from the pool", "unit"),
    "stored": ("forebay:stored", "What was stored in the pool", "unit"),
    # Its reasons are those of `forebay.decisions`; docs/why.md explains them.
    "misses": ("forebay:misses", "Requests without a prefix from the pool", "reason"),
    "asked_again": ("forebay:asked_again", "Asks of the scheduler that were put off", "reason"),
    "stores": ("forebay:stores_skipped", "Chunks that were not stored", "reason"),
    "declined": ("forebay:declined", "Requests that are not shared", "reason"),
    "failures": ("forebay:failures", "Errors inside Forebay, each a miss", "kind"),
    "dropped": ("forebay:dropped", "KV events and spans that found no room", "kind"),
    "pool": ("forebay:pool", "Pools joined and lost, and pauses of the error budget", "event"),
}


class ConnectorStats(KVConnectorStats):
    """Counts, durations of scheduler hooks, and outcomes of requests, since the last step."""

    def aggregate(self, other: KVConnectorStats) -> "ConnectorStats":
        """Both merged."""
        counts = dict(self.data.get(_COUNTS, {}))
        for name, more in other.data.get(_COUNTS, {}).items():
            counts[name] = counts.get(name, 0) + more
        hooks = {name: list(seconds) for name, seconds in self.data.get(_HOOKS, {}).items()}
        for name, seconds in other.data.get(_HOOKS, {}).items():
            hooks.setdefault(name, []).extend(seconds)
        # Only the scheduler's side tells its state; the later one counts.
        state = other.data.get(_STATE) or self.data.get(_STATE)
        reason = other.data.get(_REASON) or self.data.get(_REASON) or ""
        requests = [*self.data.get(_REQUESTS, ()), *other.data.get(_REQUESTS, ())]
        return ConnectorStats(data=_data(counts, hooks, state, requests[-_REQUESTS_MAX:], reason))

    def reduce(self) -> dict[str, int | float]:
        """The counts for one line of vLLM's log."""
        found: dict[str, int | float] = dict(sorted(self.data.get(_COUNTS, {}).items()))
        if state := self.data.get(_STATE):
            found["is_sharing"] = int(state == SharingState.SHARING)
        every = [each for seconds in self.data.get(_HOOKS, {}).values() for each in seconds]
        if every:
            found["hooks.ms"] = round(sum(every) * 1000, 3)
            found["hook.max_ms"] = round(max(every) * 1000, 3)
        return found

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not any(self.data.get(name) for name in (_COUNTS, _HOOKS, _STATE, _REQUESTS))

    def reset(self) -> None:
        """Clear all counts."""
        self.data.clear()


def stats_of(
    counts: dict[str, int],
    hooks: dict[str, list[float]],
    state: SharingState | None,
    requests: list[dict[str, Any]],
    reason: str = "",
) -> ConnectorStats | None:
    """What was counted since the last step; None if nothing. `reason`: why nothing is shared."""
    told = None if state is None else state.value
    made = ConnectorStats(data=_data(counts, hooks, told, requests, reason))
    return None if made.is_empty() else made


def _data(
    counts: dict[str, int],
    hooks: dict[str, list[float]],
    state: str | None,
    requests: list[dict[str, Any]],
    reason: str,
) -> dict[str, Any]:
    """The same as plain values, since they cross a process boundary."""
    data: dict[str, Any] = {_COUNTS: counts, _HOOKS: hooks}
    if requests:
        data[_REQUESTS] = requests
    if reason:
        data[_REASON] = reason
    return data if state is None else {**data, _STATE: state}


class PromMetrics(KVConnectorPromMetrics):
    """The same counts on vLLM's /metrics page."""

    def __init__(
        self,
        config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            word: self._counter_cls(
                name=name,
                documentation=f"{documentation} (Forebay).",
                labelnames=[*labelnames, label] if label else list(labelnames),
            )
            for word, (name, documentation, label) in _METRICS.items()
        }
        self._hooks = self._histogram_cls(
            name="forebay:hook_seconds",
            documentation="Time that the scheduler's thread spent in a call of Forebay.",
            buckets=list(_BUCKETS),
            labelnames=[*labelnames, "hook"],
        )

        self._sharing = self._gauge_cls(
            name="forebay:sharing",
            documentation="1 for what this engine does about sharing its KV (Forebay).",
            labelnames=[*labelnames, "state"],
            multiprocess_mode="mostrecent",
        )
        self._not_sharing = self._gauge_cls(
            name="forebay:not_sharing",
            documentation="1 for the reason why this engine can share nothing (Forebay).",
            labelnames=[*labelnames, "reason"],
            multiprocess_mode="mostrecent",
        )
        for engine in per_engine_labelvalues.values():
            self._set_state(engine, "")
        self._spans: RequestSpans | None = None

    def make_spans(self) -> None:
        """From now on make a span of every request; vLLM traces in this process."""
        # Imported only if vLLM traces: what it needs may not be installed.
        from forebay.engines.vllm.observing.spans import RequestSpans  # noqa: PLC0415

        self._spans = RequestSpans.beside_vllm()

    def _set_state(self, engine: list[object], state: str) -> None:
        for each in SharingState:
            self._sharing.labels(*engine, each.value).set(each == state)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what was counted since the last step."""
        if self._spans is not None and (requests := transfer_stats_data.get(_REQUESTS)):
            self._spans.take(requests)
        engine = self.per_engine_labelvalues[engine_idx]
        if state := transfer_stats_data.get(_STATE):
            self._set_state(engine, state)
        if reason := transfer_stats_data.get(_REASON):  # one of a closed set, and final
            self._not_sharing.labels(*engine, reason).set(1)
        for name, more in transfer_stats_data.get(_COUNTS, {}).items():
            word, _, rest = name.partition(".")
            counter = self._counters.get(word)
            if counter is not None:
                labels = [*engine, rest] if _METRICS[word][2] else list(engine)
                counter.labels(*labels).inc(more)
        for hook, seconds in transfer_stats_data.get(_HOOKS, {}).items():
            histogram = self._hooks.labels(*engine, hook)
            for each in seconds:
                histogram.observe(each)
