"""Bad input is one sentence that names the field; nothing else is ever raised."""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.result import files
from forebay.cli.main import main
from forebay.errors import SettingsError
from forebay.plan.breakeven import SOURCES, breakeven
from forebay.plan.capacity import GpuMachine, capacity, kv_need
from forebay.plan.fleet import FleetLoad, ServerSpec, cost, gpus_required
from forebay.plan.measured import Sla, operating_point
from forebay.plan.model.config import shape_of
from forebay.plan.pool import Demand, pool_size
from forebay.plan.ssd import DRIVES, wear

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
}


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("forebay: ")
    assert said.endswith(".")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -4}, "num_hidden_layers"),
        ({"num_hidden_layers": 4.5}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
        ({"num_attention_heads": "8"}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": 255}, "hidden_size"),
        ({"head_dim": 0}, "head_dim"),
        ({"model_type": "perceptron"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"model_type": "deepseek_v3"}, "qk_rope_head_dim"),
        ({"model_type": "gemma2"}, "sliding_window"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["mamba"] * 4}, "layer_types"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"torch_dtype": "float8"}, "torch_dtype"),
        ({"torch_dtype": 16}, "torch_dtype"),
        ({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": 1}, "use_sliding"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
    ],
)
def test_a_config_that_cannot_be_meant(
    change: dict[str, object], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**LLAMA, **change}))
    assert field in complaint(capsys, "kv", str(config))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"7", b'"llama"', b"null"]
)
def test_a_config_that_is_no_json_object(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(content)
    assert "config.json" in complaint(capsys, "kv", str(config))


KV = ("kv", "--layers", "2", "--heads", "2", "--head-dim", "8")
GPUS = ("gpus", "--target-tps", "9", "--measured-gpus", "1", "--measured-tps")
SSD = ("ssd", "--writes-per-day")
POOL = ("pool", "Qwen3-8B", "--users", "5", "--context", "100")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("kv", "no-such-model"), "MODEL"),
        (("kv", "Qwen/Qwen3-8"), "did you mean Qwen/Qwen3-8B"),
        (("kv", "bad\0name"), "MODEL"),
        (("kv",), "MODEL"),
        (("kv", "Qwen3-8B", "--layers", "2"), "MODEL"),
        (("kv", "--layers", "0", "--heads", "2", "--head-dim", "8"), "layers"),
        (("kv", "--layers", "-2", "--model-dim", "8"), "layers"),
        (("kv", "--layers", "2", "--model-dim", "0"), "model_dim"),
        ((*KV, "--bits", "0"), "bits"),
        ((*KV, "--tokens", "-1"), "tokens"),
        ((*KV, "--batch", "0"), "batch"),
        ((*KV, "--tp", "3"), "tp"),
        ((*KV, "--gpus", "2"), "gpu-memory"),
        ((*KV, "--gpu-memory", "80GiB"), "weights"),
        (("kv", "Qwen3-8B", "--gpu-memory", "eighty"), "eighty"),
        (("kv", "Qwen3-8B", "--gpu-memory", "80GB", "--gpus", "3", "--tp", "2"), "gpus 3"),
        (("kv", "Qwen3-8B", "--gpu-memory", "80GB", "--utilization", "1.1"), "utilization"),
        ((*GPUS, "0"), "measured"),
        ((*GPUS, "nan"), "measured"),
        ((*GPUS, "5", "--utilization", "-1"), "utilization"),
        ((*POOL, "--live-hours", "-1"), "live_hours"),
        ((*POOL, "--session-minutes", "0"), "session_minutes"),
        ((*POOL, "--live-hours", "0"), "dram_minutes"),
        (("breakeven", "Qwen3-8B", "--prefill-tps", "-1"), "prefill_tps"),
        ((*KV, "--tokens", "1.5"), "tokens"),
        ((*KV, "--tokens", "32kB"), "tokens"),
        ((*KV, "--tokens", "k"), "tokens"),
        (("breakeven", "Qwen3-8B", "--prefill-tps", "9", "--tp", "3"), "tp 3"),
        (("breakeven", "Qwen3-8B", "--prefill-tps", "nine"), "prefill-tps"),
        (("breakeven", "Qwen3-8B", "--prefill-tps", "9", "--bandwidth", "26GB"), "bandwidth"),
        (("breakeven", "Qwen3-8B", "--prefill-tps", "9", "--bandwidth", "x=0"), "bandwidth of x"),
        ((*SSD, "0", "--drive", "nvme-gen5"), "writes_per_day"),
        ((*SSD, "1TB"), "drive"),
        ((*SSD, "1TB", "--capacity", "1TB"), "dwpd"),
        ((*SSD, "1TB", "--drive", "nvme-gen5", "--dwpd", "1"), "drive"),
        ((*SSD, "1TB", "--drive", "nvme-gen5", "--drives", "0"), "drives"),
        (("cost",), "clients"),
        (("cost", "--clients", "0"), "clients"),
        (("cost", "--baseline-servers", "-1"), "baseline_servers"),
        (("cost", "--clients", "9", "--tpot-ms", "0"), "tpot_ms"),
        (("cost", "--clients", "9", "--tpot-ms", "30"), "RESULT"),
        (("cost", "--clients", "9", "--power-kw-min", "13"), "power_kw_min"),
        (("cost", "--clients", "9", "--price", "-1"), "price"),
        (("cost", "--clients", "9", "--pool-dram", "much"), "much"),
        (("cost", "--clients", "9", "--nvme-tb-price", "-1"), "nvme_tb_price"),
        (("pool", "Qwen3-8B", "--users", "9", "--context", "9", "--plot", "x.html"), "trace"),
        (("cost", "none.json", "--clients", "9"), "none.json"),
        (("cost", "a.json", "b.json", "c.json", "--clients", "9"), "RESULT"),
        (("gpus", "--target-req-s", "9", "--measured-tps", "9", "--measured-gpus", "1"), "bench"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_an_option_that_cannot_be_meant(
    arguments: tuple[str, ...], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert field in complaint(capsys, *arguments)


STEP = {"clients": 1, "req_s": 1.0, "tpot_ms": {"mean": 20.0}}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "'off' and 'on'"),
        ({"off": {"steps": [STEP]}}, "'off' and 'on'"),
        ({"off": {}, "on": {}}, "steps"),
        ({"off": {"steps": []}, "on": {"steps": [STEP]}}, "steps"),
        ({"off": {"steps": [1]}, "on": {"steps": [STEP]}}, "steps[0]"),
        ({"off": {"steps": [STEP | {"clients": 0}]}, "on": {"steps": [STEP]}}, "steps[0].clients"),
        ({"off": {"steps": [STEP | {"req_s": -1}]}, "on": {"steps": [STEP]}}, "steps[0].req_s"),
        ({"off": {"steps": [STEP | {"tpot_ms": 20}]}, "on": {"steps": [STEP]}}, "steps[0].tpot_ms"),
        ({"off": {"steps": [{"clients": 1, "req_s": 1}]}, "on": {"steps": [STEP]}}, "`tpot_ms`"),
        (
            {"off": {"steps": [STEP | {"tpot_ms": None}]}, "on": {"steps": [STEP]}},
            "it had no answer",
        ),
        ({"off": {"steps": [STEP | {"errors": -1}]}, "on": {"steps": [STEP]}}, "steps[0].errors"),
        (
            {"off": {"steps": [STEP | {"errors": 1}]}, "on": {"steps": [STEP]}},
            "100% of requests failed",
        ),
        ({"off": {"steps": [STEP | {"tpot_ms": {"mean": 60}}]}, "on": {"steps": [STEP]}}, "SLA"),
    ],
)
def test_a_result_that_cannot_be_used(
    document: object, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ab.json"
    file.write_text(json.dumps(document))
    assert field in complaint(capsys, "cost", str(file), "--clients", "9")


# Mostly what a configuration holds, sometimes anything at all.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.integers()
    | st.floats()
    | st.sampled_from(["llama", "deepseek_v3", "gpt_oss", "qwen3_next", "bfloat16"])
    | st.text(max_size=8)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
SIZES = st.integers(1, 64)
FIELDS = [
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "sliding_window",
    "sliding_window_pattern",
    "max_window_layers",
    "max_position_embeddings",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
]
TYPES = ["llama", "mistral", "qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next", "opt"]
OTHERS = ["model_type", "layer_types", "torch_dtype", "text_config", "use_sliding_window"]
KINDS = st.sampled_from(["full_attention", "sliding_attention", "linear_attention"])


@st.composite
def configs(draw: st.DrawFn) -> object:
    fields: dict[str, object] = {name: draw(SIZES) for name in FIELDS}
    fields["model_type"] = draw(st.sampled_from(TYPES))
    fields["use_sliding_window"] = draw(st.booleans())
    if draw(st.booleans()):
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if draw(st.booleans()):
        count = fields["num_hidden_layers"]
        assert isinstance(count, int)
        fields["layer_types"] = draw(st.lists(KINDS, min_size=count, max_size=count))
    changes = draw(st.dictionaries(st.sampled_from(FIELDS + OTHERS), ANYTHING, max_size=2))
    return draw(st.just({**fields, **changes}) | ANYTHING) if draw(st.booleans()) else fields


NUMBERS: Any = st.integers(-1, 10**6) | st.integers() | st.floats()


@given(configs(), NUMBERS, NUMBERS, st.integers(0, 16), NUMBERS)
def test_random_configs_are_answered_or_refused(
    config: object, tokens: Any, batch: Any, tp: int, rate: Any
) -> None:
    with contextlib.suppress(SettingsError):
        shape = shape_of("random", "config.json", config)
        assert shape.token_bytes >= shape.growing_token_bytes
        with contextlib.suppress(SettingsError):
            need = kv_need(shape, batch, tokens, tp)
            assert 0 < need.total_bytes <= need.rank_bytes * tp
            assert sum(group.total_bytes for group in need.groups) == need.total_bytes
        with contextlib.suppress(SettingsError):
            machine = GpuMachine(tp, batch, batch // 2, batch, tp)
            assert capacity(shape, machine, tokens).users_running >= 0
        with contextlib.suppress(SettingsError):
            assert breakeven(shape, rate, tokens, SOURCES.values()).even_bytes_s > 0
        with contextlib.suppress(SettingsError):
            pool = pool_size(shape, Demand(batch, tokens, session_minutes=rate))
            assert pool.nvme_bytes >= pool.dram_bytes > 0


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_random_numbers_are_answered_or_refused(one: Any, two: Any, three: Any, four: Any) -> None:
    with contextlib.suppress(SettingsError):
        assert gpus_required(one, two, three, four).gpus >= 1
    with contextlib.suppress(SettingsError):
        assert wear(DRIVES["nvme-gen5"], one, two).random_years > 0
    with contextlib.suppress(SettingsError):
        server = ServerSpec(one, two, three, four, price=one)
        found = cost(FleetLoad(one, two), three, four, server)
        assert found.pooled.servers * found.pooled.clients_per_server >= found.clients


@given(ANYTHING, st.lists(st.dictionaries(st.sampled_from([*STEP, "ttft_ms"]), ANYTHING)))
def test_random_results_are_read_or_refused(document: object, steps: list[object]) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "result.json"
        for one in (document, {"steps": steps}, {"steps": [STEP, *steps]}):
            for content in (one, {"off": one, "on": {"steps": [STEP]}}):
                path.write_text(json.dumps(content))
                with contextlib.suppress(SettingsError):
                    operating_point("off", files.read_pair(path).off.steps, Sla())


WORDS = st.sampled_from(
    [
        "kv",
        "gpus",
        "pool",
        "breakeven",
        "ssd",
        "cost",
        "Qwen3-8B",
        "gpt-oss-20b",
        "--tokens",
        "--batch",
        "--tp",
        "--gpus",
        "--bits",
        "--gpu-memory",
        "--users",
        "--context",
        "--clients",
        "--json",
        "--prefill-tps",
        "--target-tps",
        "--measured-tps",
        "--measured-gpus",
        "--writes-per-day",
        "--capacity",
        "--dwpd",
        "--drives",
        "--price",
        "0",
        "1",
        "8",
        "-1",
        "1e999",
        "nan",
        "80GB",
        "1TB",
        "x=1GB",
        "--bandwidth",
        "--layers",
        "--model-dim",
        "--baseline-servers",
        "--utilization",
        "--pool-dram",
        "32k",
    ]
)


@given(st.sampled_from(["kv", "gpus", "pool", "ssd", "cost"]), st.lists(WORDS, max_size=9))
def test_random_command_lines_end_with_a_status(question: str, words: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            status: object = main(["plan", question, *words])
        except SystemExit as stop:  # argparse refuses with its own sentence
            status = stop.code
    assert status in {0, 2}
