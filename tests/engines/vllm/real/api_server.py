"""vLLM's own API server in a process of its own, as a client and an operator have it in hand."""

import contextlib
import http.client
import json
import logging
import os
import runpy
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.engines.vllm.real import forked
from tests.engines.vllm.real.engine import HANG_S, KV_BYTES, NO_DEADLINES
from tests.engines.vllm.real.engine_process import transfer_config
from tests.engines.vllm.real.models import Tokens
from tests.pool_process import PoolProcess, wait_until

VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",  # its prefix cache can be emptied
    "OTEL_BSP_SCHEDULE_DELAY": "100",  # ms between two exports of spans
}


def serve(_: Connection, arguments: list[str], log: str, is_loud: bool = False) -> None:
    """What `python -m vllm.entrypoints.openai.api_server` does."""
    os.setsid()  # killed with all that it starts
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.dup2(2, 1)
    os.environ.update(VARIABLES)
    if is_loud:  # here vLLM was imported before, in other processes it will be
        os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
        logging.getLogger("vllm").setLevel(logging.DEBUG)
    sys.argv = ["vllm", *arguments]
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


class ApiServer:
    """A server with a pool; `flags` are vLLM's."""

    def __init__(
        self, model: Path, pool: PoolProcess, log: Path, *flags: str, is_loud: bool = False
    ) -> None:
        settings = {"socket": pool.socket, **NO_DEADLINES}
        self._socket = str(pool.place / "api.sock")
        arguments = ["--model", str(model), "--served-model-name", "model", "--uds", self._socket]
        arguments += ["--dtype", "float32", "--max-model-len", "2048"]
        arguments += ["--max-num-seqs", "4", "--enforce-eager", "--skip-tokenizer-init"]
        arguments += ["--kv-cache-memory-bytes", str(KV_BYTES), "--enable-prompt-tokens-details"]
        transfer = transfer_config(settings, is_recorded=False)
        del transfer["kv_connector_module_path"]  # vLLM knows the name by our plugin
        arguments += ["--kv-transfer-config", json.dumps(transfer), *flags]
        self._process, self._pipe = forked.start(serve, arguments, str(log), is_loud)
        self.log = log
        self._lock = threading.Lock()
        self.asked = 0  # requests, as the engine counts them; guarded by the lock
        try:
            wait_until(self._is_up, "vLLM's API server", HANG_S)
        except BaseException:
            self.kill()
            raise

    def ask(
        self, prompt: Tokens, answer: int = 8, *, headers: dict[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        """The whole answer of the API, of exactly so many tokens."""
        body = {
            "model": "model",
            "prompt": prompt,
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": True,
            "detokenize": False,
            "return_token_ids": True,
            **more,
        }
        with self._lock:
            self.asked += int(more.get("n", 1))
        found: dict[str, Any] = json.loads(self._fetch("/v1/completions", body, headers))
        return found

    def empty_cache(self) -> None:
        """Forget all KV of the engine's own."""
        self._fetch("/reset_prefix_cache", {})

    def metrics(self) -> str:
        return self._fetch("/metrics")

    def total(self, metric: str, **labels: str) -> int:
        """The sum of a metric's samples that have these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        return round(
            sum(
                sample.value
                for family in text_string_to_metric_families(self.metrics())
                for sample in family.samples
                if sample.name == metric and labels.items() <= sample.labels.items()
            )
        )

    @property
    def pid(self) -> int:
        """Of its first process, and of the group of all of them."""
        assert self._process.pid is not None
        return self._process.pid

    def end(self, number: int, timeout_s: float) -> None:
        """Send it a signal, or its whole group with SIGINT; until its engine has ended.

        The HTTP server of a busy machine may stay for ever then: vLLM does not always tell a
        request that its engine is gone, and waits until the client has closed the connection.
        """
        assert self._engines(), "the control: it is found while it lives"
        (os.killpg if number == signal.SIGINT else os.kill)(self.pid, number)
        try:
            wait_until(lambda: not self._engines(), "the engine's end", timeout_s)
        except AssertionError as error:
            raise AssertionError(self.log.read_text(errors="replace")[-4000:]) from error

    def _engines(self) -> list[int]:
        """Its engine's processes, by the titles that vLLM gives them."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_ours = os.getsid(int(place.name)) == self.pid
                if is_ours and (place / "cmdline").read_bytes().startswith(b"VLLM::"):
                    found.append(int(place.name))
        return found

    def kill(self) -> None:
        """With all of its processes, at once; of one that has ended, whatever is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, 9)
        self._process.join()
        self._pipe.close()

    def _is_up(self) -> bool:
        assert self._process.is_alive(), self.log.read_text(errors="replace")[-4000:]
        try:
            self._fetch("/health")
        except OSError:
            return False
        return True

    def _fetch(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> str:
        connection = _Connection(self._socket)
        try:
            sent = {"Content-Type": "application/json", **(headers or {})}
            data = None if body is None else json.dumps(body)
            connection.request("GET" if data is None else "POST", path, data, sent)
            reply = connection.getresponse()
            content = reply.read().decode()
        finally:
            connection.close()
        assert reply.status == http.HTTPStatus.OK, (path, reply.status, content[:1000])
        return content


class _Connection(http.client.HTTPConnection):
    """To a server at a Unix socket: no port, and nobody else's either."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=HANG_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(HANG_S)
        self.sock.connect(self._path)


def cached_of(answer: dict[str, Any]) -> int:
    """Tokens of the prompt that were not computed, as the API tells its client."""
    details = answer["usage"]["prompt_tokens_details"]
    return 0 if details is None else int(details["cached_tokens"] or 0)
