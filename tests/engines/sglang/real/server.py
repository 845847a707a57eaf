"""A real SGLang server on CPUs, in processes of its own, as a test has it in hand."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.vllm.real.models import Tokens
from tests.pool_process import PoolProcess, environment

HANG_S = 600.0  # a wait that takes longer is one that does not end, however busy the machine is
ANSWER = 24  # tokens
PAGE = 64  # tokens
STUBS = Path(__file__).parent.parent / "stubs"
# What is tested here is not how soon a busy machine answers. SGLang itself waits for what it loads
# as long as these are, plus its own second.
DEADLINES_MS = 10_000
FLAGS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
    "--dtype": "float32",
    "--host": "127.0.0.1",
    "--mem-fraction-static": "0.2",
    "--max-total-tokens": "8192",
    "--context-length": "2048",
    "--page-size": str(PAGE),
    "--hicache-ratio": "2",
    "--hicache-io-backend": "direct",
    "--hicache-mem-layout": "page_first_direct",
    "--hicache-storage-backend": "dynamic",
    "--hicache-storage-prefetch-policy": "wait_complete",
}
SWITCHES = (
    *("--skip-tokenizer-init", "--disable-overlap-schedule", "--skip-server-warmup"),
    *("--enable-hierarchical-cache",),
)


@dataclass
class Answer:
    tokens: Tokens
    cached: int  # tokens of the prompt that were not computed
    stored: int  # of these, tokens that the pool had


class Server:
    """One server with its scheduler; `settings` are what a user writes for the backend."""

    def __init__(
        self, model: Path, pool: PoolProcess, log: Path, *, ranks: int = 1, **settings: Any
    ) -> None:
        self.log = log
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        backend = {
            "backend_name": "forebay",
            "module_path": "forebay.engines.sglang.backend",
            "class_name": "ForebayStorage",
            "interface_v1": 1,
            "hicache_storage_pass_prefix_keys": True,
            "prefetch_threshold": PAGE,
            "socket": pool.socket,
            "no_pool": "serve",
            "lookup_deadline_ms": DEADLINES_MS,
            "load_deadline_ms": DEADLINES_MS,
            **settings,
        }
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model)]
        command += [word for flag in FLAGS.items() for word in flag]
        command += [*SWITCHES, "--tp-size", str(ranks), "--port", self._url.rpartition(":")[2]]
        command += ["--hicache-storage-backend-extra-config", json.dumps(backend)]
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        paths = [str(STUBS), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **environment(),
            "PYTHONPATH": os.pathsep.join(paths),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join([cpus] * ranks),  # else each needs a NUMA node
        }
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables,
                start_new_session=True,  # killed with all that it starts
            )

    def wait_until_ready(self) -> "Server":
        """It answers, or has ended and the end of its log is the failure."""
        until = time.monotonic() + HANG_S
        while True:
            try:
                self.post("/generate", {"input_ids": [1, 2], **_greedy(1)})
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, self.log.read_text()[-6000:]
                assert time.monotonic() < until, self.log.read_text()[-6000:]
                time.sleep(0.2)
            else:
                return self

    def ask(self, prompts: list[Tokens], answer: int = ANSWER) -> list[Answer]:
        """Answer one after the other."""
        return [self._answer(tokens, answer) for tokens in prompts]

    def flush(self) -> None:
        """Forget all KV of its own, so that what comes back comes from the pool."""
        until = time.monotonic() + HANG_S
        while True:  # it refuses while anything is still being stored
            try:
                self.post("/flush_cache")
            except urllib.error.HTTPError:
                assert time.monotonic() < until
                time.sleep(0.1)
            else:
                return

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What it answers, as JSON where it is that."""
        request = urllib.request.Request(
            self._url + path,
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=HANG_S) as reply:
            text = reply.read()
        return json.loads(text) if text.startswith((b"{", b"[")) else text

    def said(self, words: str) -> bool:
        """Whether its log has this."""
        return words in self.log.read_text(errors="replace")

    def kill(self) -> None:
        """As a server dies: with all of its processes, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(HANG_S)

    def _answer(self, tokens: Tokens, answer: int) -> Answer:
        told = self.post("/generate", {"input_ids": tokens, **_greedy(answer)})
        about = told["meta_info"]
        stored = (about["cached_tokens_details"] or {}).get("storage", 0)
        return Answer(told["output_ids"], about["cached_tokens"], stored)


def _greedy(answer: int) -> dict[str, Any]:
    return {
        "sampling_params": {"temperature": 0, "max_new_tokens": answer, "ignore_eos": True},
    }


def tokens_of(answers: list[Answer]) -> list[Tokens]:
    return [each.tokens for each in answers]


def stored_of(answers: list[Answer]) -> int:
    return sum(each.stored for each in answers)
