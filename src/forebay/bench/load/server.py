"""What a server tells about itself: its model, tokens per word, and its own metrics."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Final

import msgspec

from forebay.bench.load import client
from forebay.bench.load.client import Endpoint, Failed, Target
from forebay.bench.load.sessions import SyntheticText
from forebay.bench.result.format import ServerFigures
from forebay.errors import StartupError

_FETCH_S: Final = 10.0
_LOOK_S: Final = 1.0
_PROBE_TOKENS: Final = (64, 576)  # the difference leaves out what the chat template adds
# vLLM's names, the older ones too; counters end in _total.
_METRIC: Final = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc"
    r"|num_preemptions_total|prefix_cache_hits_total|external_prefix_cache_hits_total"
    r"|external_prefix_cache_queries_total)(?:\{[^}]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
_SHARES: Final = ("kv_cache_usage_perc", "gpu_cache_usage_perc")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(min_length=1)]


async def model_of(endpoint: Endpoint) -> str:
    """The first model that the server has; a StartupError if it does not say."""
    found = await client.fetch(endpoint, endpoint.base + "/models", _FETCH_S)
    if isinstance(found, Failed):
        raise cannot_begin(found, f"{endpoint.url}/models does not list the server's models")
    try:
        return msgspec.json.decode(found, type=_Models).data[0].id
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StartupError(
            f"{endpoint.url}/models lists no model; name one with --model."
        ) from None


def cannot_begin(failed: Failed, what: str) -> StartupError:
    """In one sentence: no server is there, or what of it does not work, and why."""
    is_absent = failed.kind == client.UNREACHABLE
    return StartupError(f"{failed.why}." if is_absent else f"{what}: {failed.why}.")


async def text_of(target: Target) -> SyntheticText:
    """Made-up text sized by the server's own token count; a StartupError if it does not answer."""
    plain = SyntheticText()
    counts = []
    for tokens in _PROBE_TOKENS:
        text = plain.text(f"probe/{tokens}", tokens)
        answer = await client.ask(target, [{"role": "user", "content": text}], 2)
        if isinstance(answer, Failed):
            raise cannot_begin(answer, "a first test request failed")
        counts.append(answer.prompt_tokens)
    words = (_PROBE_TOKENS[1] - _PROBE_TOKENS[0]) / plain.tokens_a_word
    return SyntheticText((counts[1] - counts[0]) / words) if counts[1] > counts[0] else plain


@dataclass(slots=True)
class MetricsWatch:
    """A server's metrics while it is under load; empty where it has none."""

    samples: list[dict[str, float]] = field(default_factory=list)

    def figures(self) -> ServerFigures | None:
        if not self.samples:
            return None
        kv_use = [value for name in _SHARES for value in self._values(name)]
        waiting = self._values("num_requests_waiting")
        return ServerFigures(
            running_mean=_mean(self._values("num_requests_running")),
            waiting_mean=_mean(waiting),
            waiting_max=max(waiting, default=None),
            kv_use_max=round(max(kv_use), 4) if kv_use else None,
            preemptions=self._growth("num_preemptions_total"),
            prefix_hit_tokens=self._growth("prefix_cache_hits_total"),
            external_hit_tokens=self._growth("external_prefix_cache_hits_total"),
            external_query_tokens=self._growth("external_prefix_cache_queries_total"),
        )

    def _values(self, name: str) -> list[float]:
        return [sample[name] for sample in self.samples if name in sample]

    def _growth(self, name: str) -> int | None:
        values = self._values(name)
        return max(0, round(values[-1] - values[0])) if values else None


@contextlib.asynccontextmanager
async def watched(endpoint: Endpoint) -> AsyncIterator[MetricsWatch]:
    """Look at the metrics now, every second, and at the end."""
    watch = MetricsWatch()

    async def keep_looking() -> None:
        while watch.samples:
            await asyncio.sleep(_LOOK_S)
            await _look(endpoint, watch)

    await _look(endpoint, watch)
    looking = asyncio.create_task(keep_looking())
    try:
        yield watch
    finally:
        looking.cancel()
        await asyncio.wait([looking])
        if watch.samples:
            await _look(endpoint, watch)


async def _look(endpoint: Endpoint, watch: MetricsWatch) -> None:
    found = await client.fetch(endpoint, "/metrics", _FETCH_S)
    if isinstance(found, Failed):
        return
    sample: dict[str, float] = {}
    for name, value in _METRIC.findall(found.decode(errors="replace")):
        with contextlib.suppress(ValueError):
            sample[name] = sample.get(name, 0.0) + float(value)  # over all engines of a server
    if sample:
        watch.samples.append(sample)


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 2) if values else None
