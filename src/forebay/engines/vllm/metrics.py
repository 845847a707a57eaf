"""What the connector tells vLLM's own logger and its /metrics page.

Counts are named by dotted words; the first word chooses the metric, the rest is its label, so a new
reason needs no line here. docs/serve.md explains the metrics to operators.
"""

from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

_COUNTS: Final = "counts"
_HOOKS: Final = "hooks"
_BUCKETS: Final = (0.00005, 0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2)
# First word of a count → (metric, what it counts, its label or "").
_METRICS: Final = {
    "lookups": ("forebay:lookups", "Requests that the pool was asked about", ""),
    "loads": ("forebay:loads", "Requests with a prefix from the pool", ""),
    "loaded": ("forebay:loaded", "What was loaded from the pool", "unit"),
    "stored": ("forebay:stored", "What was stored in the pool", "unit"),
    "misses": ("forebay:misses", "Requests without a prefix from the pool", "reason"),
    "asked_again": ("forebay:asked_again", "Asks of the scheduler that were put off", "reason"),
    "stores": ("forebay:stores_skipped", "Chunks that were not stored", "reason"),
    "requests": ("forebay:requests", "Requests of a special kind", "kind"),
    "failures": ("forebay:failures", "Errors inside Forebay, each a miss", "kind"),
    "pool": ("forebay:pool", "Pools joined and lost, and pauses of the error budget", "event"),
}


class Stats(KVConnectorStats):
    """Counts, and the seconds of each call of a scheduler's hook, since the last step."""

    def aggregate(self, other: KVConnectorStats) -> "Stats":
        """Both, as one."""
        counts = dict(self.data.get(_COUNTS, {}))
        for name, more in other.data.get(_COUNTS, {}).items():
            counts[name] = counts.get(name, 0) + more
        hooks = {name: list(seconds) for name, seconds in self.data.get(_HOOKS, {}).items()}
        for name, seconds in other.data.get(_HOOKS, {}).items():
            hooks.setdefault(name, []).extend(seconds)
        return Stats(data={_COUNTS: counts, _HOOKS: hooks})

    def reduce(self) -> dict[str, int | float]:
        """One line of vLLM's log."""
        found: dict[str, int | float] = dict(sorted(self.data.get(_COUNTS, {}).items()))
        every = [each for seconds in self.data.get(_HOOKS, {}).values() for each in seconds]
        if every:
            found["hooks.ms"] = round(sum(every) * 1000, 3)
            found["hook.max_ms"] = round(max(every) * 1000, 3)
        return found

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.data.get(_COUNTS) and not self.data.get(_HOOKS)

    def reset(self) -> None:
        """Begin anew."""
        self.data.clear()


def stats_of(counts: dict[str, int], hooks: dict[str, list[float]]) -> Stats | None:
    """What is new since the last step; None if nothing is."""
    return Stats(data={_COUNTS: counts, _HOOKS: hooks}) if counts or hooks else None


class PromMetrics(KVConnectorPromMetrics):
    """The same on vLLM's /metrics page."""

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

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what one step has told."""
        engine = self.per_engine_labelvalues[engine_idx]
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
