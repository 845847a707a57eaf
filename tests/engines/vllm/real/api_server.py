"""vLLM's own API server, as a client and an operator have it in hand."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from tests.engines.vllm.real.engine import HANG_S, KV_BYTES, NO_DEADLINES
from tests.engines.vllm.real.forked import VARIABLES
from tests.engines.vllm.real.models import Tokens
from tests.pool_process import PoolProcess

from forebay.bench.processes import HOST, ServerProcess, free_port
from forebay.engines.start import vllm
from forebay.settings import Settings


class ApiServer:
    """A server with a pool; `flags` are vLLM's."""

    def __init__(self, model: Path, pool: PoolProcess, log: Path, *flags: str) -> None:
        extra = {"socket": pool.socket, **NO_DEADLINES}
        transfer = vllm.transfer_config(Settings(), pool.socket)
        transfer["kv_connector_extra_config"] = extra
        port = free_port()
        fixed = ["--model", str(model), "--served-model-name", "model", "--host", HOST]
        fixed += ["--port", str(port), "--dtype", "float32", "--max-model-len", "2048"]
        fixed += ["--max-num-seqs", "4", "--enforce-eager", "--skip-tokenizer-init"]
        fixed += ["--kv-cache-memory-bytes", str(KV_BYTES), "--enable-prompt-tokens-details"]
        variables = {
            **os.environ,
            **VARIABLES,
            "VLLM_SERVER_DEV_MODE": "1",  # its prefix cache can be emptied
            "OTEL_BSP_SCHEDULE_DELAY": "100",  # ms between two exports of spans
        }
        self._process = ServerProcess.start(
            vllm.command([*fixed, *flags], transfer),
            vllm.environment(Settings(), variables, offline=True),
            port,
            log,
        )
        try:
            self._process.wait()
        except BaseException:
            self._process.kill()
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

    def kill(self) -> None:
        self._process.kill()
        self._process.process.wait(HANG_S)

    def _fetch(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> str:
        endpoint = self._process.endpoint
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{endpoint.host}:{endpoint.port}{path}",
            data,
            {"Content-Type": "application/json", **(headers or {})},
        )
        with urllib.request.urlopen(request, timeout=HANG_S) as reply:
            content: bytes = reply.read()
        return content.decode()


def cached_of(answer: dict[str, Any]) -> int:
    """Tokens of the prompt that were not computed, as the API tells its client."""
    details = answer["usage"]["prompt_tokens_details"]
    return 0 if details is None else int(details["cached_tokens"] or 0)
