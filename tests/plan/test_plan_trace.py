"""`plan pool --trace`: hit rates at each size, on cases that are known by hand."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import main
from forebay.errors import SettingsError
from forebay.plan.hits import trace_hits
from forebay.plan.model.shape import LayerGroup, LayerKind, Shape, plain_shape
from forebay.sim.trace import CHUNK_TOKENS, Request

SHAPE = plain_shape(1, 1, 1, 16)  # 4 bytes a token
CHUNK_BYTES = 4 * CHUNK_TOKENS


def request(*names: str, tokens: int | None = None) -> Request:
    keys = [name.encode() for name in names]
    return Request(0.0, keys, len(keys) * CHUNK_TOKENS if tokens is None else tokens)


def test_a_loop_one_larger_than_the_pool_defeats_lru_but_not_the_optimum() -> None:
    loop = [request(name) for name in "abc" * 10]
    found = trace_hits(SHAPE, loop, [2 * CHUNK_BYTES, 3 * CHUNK_BYTES])
    assert found.distinct_bytes == 3 * CHUNK_BYTES
    two, three = found.rates
    assert two.lru == 0.0
    assert two.optimum == 18 / 30  # two of the three stay for good
    assert three.lru == three.optimum == 27 / 30


def test_tokens_beyond_the_last_chunk_are_counted_as_missed() -> None:
    tokens = CHUNK_TOKENS + CHUNK_TOKENS // 2
    found = trace_hits(SHAPE, [request("a", tokens=tokens)] * 2, [CHUNK_BYTES])
    assert found.rates[0].lru == pytest.approx(CHUNK_TOKENS / (2 * tokens))


def test_sizes_default_to_shares_of_the_trace() -> None:
    found = trace_hits(SHAPE, [request(*map(str, range(1024)))] * 2)
    assert [rate.size_bytes // CHUNK_BYTES for rate in found.rates] == [4, 16, 64, 256, 1024]
    assert [rate.lru for rate in found.rates] == sorted(rate.lru for rate in found.rates)
    assert found.rates[-1].lru == found.rates[-1].optimum == 0.5


def test_a_model_without_kv_cannot_be_sized() -> None:
    group = LayerGroup(LayerKind.LINEAR, 1, 1, 0, state_bytes=8)
    with pytest.raises(SettingsError, match="MODEL"):
        trace_hits(Shape("linear", (group,), 1, 0, 16), [request("a")])


def test_the_command_reads_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"timestamp": 1000 * n, "input_length": 1024, "output_length": 1, "hash_ids": [0, n % 2]}
        for n in range(1, 5)
    ]
    trace = tmp_path / "trace.jsonl.xz"
    trace.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    pool = ["plan", "pool", "Llama-3.1-8B", "--trace", str(trace)]
    assert main([*pool, "--sizes", "1GiB,64MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chunk_bytes"] == 64 << 20
    assert [rate["size_bytes"] for rate in found["rates"]] == [64 << 20, 1 << 30]
    assert found["rates"][1]["lru"] == found["rates"][1]["optimum"] == 5 / 8
    assert main(pool) == 0
    assert "62.5%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--users", "5"), "context is missing"),
        (("--context", "5"), "users is missing"),
        (("--users", "5", "--context", "5", "--sizes", "1GB"), "trace is missing"),
        (("--trace", "none.jsonl"), "none.jsonl"),
        (("--trace", "none.jsonl", "--context", "5"), "context"),
        (("--trace", "none.jsonl", "--users", "0"), "users"),
        (("--trace", "none.jsonl", "--sizes", "huge"), "huge"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_what_cannot_be_meant_is_one_sentence(
    arguments: tuple[str, ...], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "pool", "Qwen3-8B", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert field in said
    assert "\n" not in said
