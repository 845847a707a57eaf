"""`forebay bench serve` against vLLM's own benchmark, on one server of real vLLM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engines.vllm.relay import relayed

from forebay.bench import processes
from forebay.bench.ab.demo import engine_of
from forebay.bench.load.client import Endpoint
from forebay.engines.start import demo_model, vllm
from forebay.settings import Settings

pytestmark = pytest.mark.vllm
CLIENTS, REQUESTS, PROMPT, ANSWER = 2, 12, 300, 40
PROBES = 2  # questions of ours before the first step
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
    port = processes.free_port()
    wanted = engine_of(model, 192 << 20)
    words = ["--model", model, "--served-model-name", "demo", "--host", processes.HOST]
    command = vllm.command([*words, "--port", str(port), *wanted.arguments], None)
    base = {**os.environ, **wanted.variables}
    variables = vllm.environment(Settings(), base, offline=True)
    log = tmp_path_factory.mktemp("engine") / "log"
    with processes.running_server(command, variables, port, log) as endpoint:
        yield endpoint


def ours(url: str, out: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "forebay.cli", "bench", "serve", "--workload", "stateless"]
    command += ["--url", url, "--clients", str(CLIENTS), "--requests", str(REQUESTS)]
    command += ["--prompt-tokens", str(PROMPT), "--answer-tokens", str(ANSWER)]
    subprocess.run([*command, "--out", str(out)], check=True)
    step = json.loads(out.read_text())["steps"][0]
    assert step["requests"] == CLIENTS * REQUESTS
    return {
        "req/s": step["req_s"],
        "median TTFT": step["ttft_ms"]["p50"],
        "mean TPOT": step["tpot_ms"]["mean"],
        "output tokens": step["output_tokens"],
    }


def theirs(host: str, port: int, model: str, out: Path) -> dict[str, float]:
    command = [sys.executable, "-c", THEIRS, "--backend", "openai-chat"]
    command += ["--endpoint", "/v1/chat/completions"]
    command += ["--base-url", f"http://{host}:{port}", "--model", "demo"]
    command += ["--tokenizer", model, "--dataset-name", "random", "--ignore-eos"]
    command += ["--random-input-len", str(PROMPT), "--random-output-len", str(ANSWER)]
    command += ["--num-prompts", str(CLIENTS * REQUESTS), "--max-concurrency", str(CLIENTS)]
    command += ["--num-warmups", str(PROBES), "--temperature", "0", "--disable-tqdm"]
    command += ["--save-result"]
    command += ["--result-dir", str(out.parent), "--result-filename", out.name]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    found = json.loads(out.read_text())
    assert found["completed"] == CLIENTS * REQUESTS
    return {
        "req/s": found["request_throughput"],
        "median TTFT": found["median_ttft_ms"],
        "mean TPOT": found["mean_tpot_ms"],
        "output tokens": found["total_output_tokens"],
    }


@pytest.mark.timeout(900)
def test_it_agrees_with_vllms_own_benchmark(served: Endpoint, model: str, tmp_path: Path) -> None:
    """Both measure the same streams of one server, request by request: see relay.py.

    Of TTFT the median: who begins first waits with its first requests for the other.
    """
    with relayed(served.port) as (port, other_port), ThreadPoolExecutor(1) as beside:
        # It takes longer to begin, and its first requests wait for ours: they are not counted.
        theirs_told = beside.submit(theirs, served.host, other_port, model, tmp_path / "theirs")
        ours_told = ours(f"http://{served.host}:{port}", tmp_path / "ours")
        pair = ours_told, theirs_told.result()
    print(json.dumps(pair, indent=2))
    for name, value in pair[0].items():
        assert abs(value / pair[1][name] - 1) <= BAR, (name, pair)
