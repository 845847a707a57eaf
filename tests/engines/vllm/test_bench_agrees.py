"""`forebay bench serve` against vLLM's own benchmark, on one server of real vLLM, turn by turn."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from forebay.bench.ab import engine
from forebay.bench.ab.demo import engine_of
from forebay.bench.load.client import Endpoint
from forebay.engines.start import demo_model, vllm
from forebay.settings import Settings

pytestmark = pytest.mark.vllm
CLIENTS, REQUESTS, PROMPT, ANSWER = 2, 5, 300, 40
PAIRS = 5
BAR = 0.05
# `vllm bench serve`; the build for CPUs is a package of another name, and has no such command.
THEIRS = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@pytest.fixture(scope="module")
def model() -> str:
    return demo_model.prepare()


@pytest.fixture(scope="module")
def served(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    port = engine.free_port()
    wanted = engine_of(model, 192 << 20)
    words = ["--model", model, "--served-model-name", "demo", "--host", engine.HOST]
    command = vllm.command([*words, "--port", str(port), *wanted.arguments], None)
    base = {**os.environ, **wanted.variables}
    variables = vllm.environment(Settings(), base, offline=True)
    log = tmp_path_factory.mktemp("engine") / "log"
    with engine.running(command, variables, port, log) as endpoint:
        yield endpoint


def ours(served: Endpoint, out: Path, seed: int) -> dict[str, float]:
    command = [sys.executable, "-m", "forebay.cli", "bench", "serve", "--workload", "stateless"]
    command += ["--url", served.url, "--clients", str(CLIENTS), "--requests", str(REQUESTS)]
    command += ["--prompt-tokens", str(PROMPT), "--answer-tokens", str(ANSWER)]
    subprocess.run([*command, "--seed", str(seed), "--out", str(out)], check=True)
    step = json.loads(out.read_text())["steps"][0]
    assert step["requests"] == CLIENTS * REQUESTS
    return {
        "req/s": step["req_s"],
        "TTFT": step["ttft_ms"]["mean"],
        "TPOT": step["tpot_ms"]["mean"],
        "prompt tokens": step["prompt_tokens"],
    }


def theirs(served: Endpoint, model: str, out: Path, seed: int) -> dict[str, float]:
    command = [sys.executable, "-c", THEIRS, "--backend", "openai-chat"]
    command += ["--endpoint", "/v1/chat/completions"]
    command += ["--base-url", f"http://{served.host}:{served.port}", "--model", "demo"]
    command += ["--tokenizer", model, "--dataset-name", "random", "--ignore-eos"]
    command += ["--random-input-len", str(PROMPT), "--random-output-len", str(ANSWER)]
    command += ["--num-prompts", str(CLIENTS * REQUESTS), "--max-concurrency", str(CLIENTS)]
    command += ["--seed", str(seed), "--temperature", "0", "--disable-tqdm", "--save-result"]
    command += ["--result-dir", str(out.parent), "--result-filename", out.name]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    found = json.loads(out.read_text())
    assert found["completed"] == CLIENTS * REQUESTS
    return {
        "req/s": found["request_throughput"],
        "TTFT": found["mean_ttft_ms"],
        "TPOT": found["mean_tpot_ms"],
        "prompt tokens": found["total_input_tokens"],
    }


@pytest.mark.timeout(1500)
def test_it_agrees_with_vllms_own_benchmark(served: Endpoint, model: str, tmp_path: Path) -> None:
    """Medians of pairs in alternating order: what else the machine does hits both alike."""
    pairs = []
    for number in range(PAIRS):
        if number % 2 == 0:
            one = ours(served, tmp_path / f"ours-{number}.json", number)
        other = theirs(served, model, tmp_path / f"theirs-{number}.json", 100 + number)
        if number % 2 == 1:
            one = ours(served, tmp_path / f"ours-{number}.json", number)
        pairs.append((one, other))
    ratios = {name: [one[name] / other[name] for one, other in pairs] for name in pairs[0][0]}
    print(json.dumps({"pairs": pairs, "ratios": ratios}, indent=2))
    for name, values in ratios.items():
        assert abs(median(values) - 1) <= BAR, (name, values)
