"""An OpenAI-compatible server whose delays are known: the counterpart that a client is held to.

A process of its own: `python tests/stub_server.py --port P [--ttft-ms N] [--tpot-ms N] …`. It keeps
the times at which it sent each token; `/sent` returns them. From request number `--fault-from` on
it fails as `--fault` says. With `--kv-transfer-config`, as vLLM has it, it is an engine of that
pool: it stores what it is asked, loads what comes back, and only the rest takes `--prefill-us` a
word.
"""

import argparse
import asyncio
import contextlib
import json
import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forebay.identity.keys import ChainRoot, KeyChain
from forebay.identity.namespace import fingerprint
from forebay.pool.client import Chain, Client, Loaded
from forebay.pool.client.outcomes import Known

FAULTS = ("die", "hang", "garbage", "html", "cut", "400", "429", "500", "error", "silent", "empty")
CHUNK_WORDS = 16
CHUNK_BYTES = 16 << 10


class Memory:
    """An engine's membership of a pool, on a thread of its own."""

    def __init__(self, socket: str) -> None:
        self._client = Client(socket)
        self._thread = ThreadPoolExecutor(1)

    async def remembered(self, text: str) -> int:
        """How many words the pool had; afterwards it has them all."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._take, text)

    def _take(self, text: str) -> int:
        namespace = fingerprint({"model": "stub"})
        tokens = [zlib.crc32(word.encode()) for word in text.split()]
        count = len(tokens) // CHUNK_WORDS
        if not count:
            return 0
        whole = tokens[: count * CHUNK_WORDS]
        keys = KeyChain(ChainRoot(namespace, CHUNK_WORDS)).extend(whole)
        chain = Chain(namespace, keys)
        known = self._client.lookup(chain)
        found = 0
        if isinstance(known, Known) and known.chunks:
            with self._client.load(chain) as loaded:
                found = len(loaded.chunks) if isinstance(loaded, Loaded) else 0
        if found < count:
            payloads = [bytes([at % 256]) * CHUNK_BYTES for at in range(found, count)]
            self._client.store(chain, payloads, found)
        return found * CHUNK_WORDS


class Stub:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.asked = 0
        self.sound = 0  # answers under way that will not fail
        self.sent: list[dict[str, float]] = []
        self.bodies: list[dict[str, Any]] = []
        self.memory: Memory | None = None
        if options.kv_transfer_config:
            transfer = json.loads(options.kv_transfer_config)
            self.memory = Memory(transfer["kv_connector_extra_config"]["socket"])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = 0
            for line in head.split("\r\n"):
                if line.lower().startswith("content-length:"):
                    length = int(line.split(":")[1])
            body = await reader.readexactly(length)
            await self.answer(head.split()[1], body, writer)
        writer.close()

    async def answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/chat/completions":
            is_sound = self.options.fault is None or self.asked < self.options.fault_from
            self.sound += is_sound
            try:
                await self.chat(json.loads(body), writer)
            finally:  # also where the client has hung up before the last byte
                self.sound -= is_sound
            return
        found = {
            "/health": "",
            "/v1/models": json.dumps({"object": "list", "data": [{"id": "stub"}]}),
            "/sent": json.dumps({"sent": self.sent, "bodies": self.bodies}),
            "/metrics": self.metrics(),
        }.get(path)
        whole(writer, 404 if found is None else 200, found or "")
        await writer.drain()

    def metrics(self) -> str:
        return (
            "# HELP vllm:num_requests_running x\n"
            'vllm:num_requests_running{engine="0"} 2.0\n'
            'vllm:num_requests_waiting{engine="0"} 1.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
            f'vllm:num_preemptions_total{{engine="0"}} {float(self.asked)}\n'
            f'vllm:external_prefix_cache_hits_total{{engine="0"}} {100.0 * self.asked}\n'
        )

    async def chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        arrived = time.perf_counter()
        number, self.asked = self.asked, self.asked + 1
        if self.options.keep_bodies:
            self.bodies.append(body)
        fault = self.options.fault if number >= self.options.fault_from else None
        if fault == "400":  # as vLLM has it, and what a terminal had better not be given
            said = {"error": {"message": "too many\x1b[2J tokens.\n", "type": "BadRequestError"}}
            whole(writer, 400, json.dumps(said))
            return
        if fault in {"429", "500"}:
            whole(writer, int(fault), '{"error": "no"}')
            return
        if fault == "html":
            whole(writer, 200, "<html>all is well</html>")
            return
        if fault == "silent":
            await asyncio.sleep(3600)
        text = " ".join(message["content"] for message in body["messages"])
        known = 0 if self.memory is None else await self.memory.remembered(text)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        prefill_s = self.options.prefill_us * 1e-6 * (len(text.split()) - known)
        due = max(time.perf_counter(), arrived + self.options.ttft_ms / 1e3) + prefill_s
        times = await self.stream(body["max_tokens"], due, fault, writer)
        if times is None:
            return
        first, last = times
        tokens = body["max_tokens"]
        self.sent.append({"ttft": first - arrived, "tpot": (last - first) / max(1, tokens - 1)})
        usage: dict[str, Any] = {"prompt_tokens": words(body), "completion_tokens": tokens}
        if self.memory is not None or self.options.cached:
            usage["prompt_tokens_details"] = {"cached_tokens": 2 * known}
        if not self.options.no_usage:
            piece(writer, {"choices": [], "usage": usage})
        chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def stream(
        self, tokens: int, due: float, fault: str | None, writer: asyncio.StreamWriter
    ) -> tuple[float, float] | None:
        """When the first and the last token were sent; None where it went wrong."""
        first = last = 0.0
        # As vLLM does: who answers comes before the first word.
        piece(writer, choice({"role": "assistant", "content": ""}, None))
        for at in range(tokens):
            pause = due - time.perf_counter()
            if pause > 0:
                await asyncio.sleep(pause)
            if at == tokens // 2 and fault:
                await self.go_wrong(fault, writer)
                return None
            last = time.perf_counter()  # before it leaves: no client can have it sooner
            first = first or last
            piece(writer, choice({"content": f"w{at} "}, "length" if at == tokens - 1 else None))
            due += self.options.tpot_ms / 1e3
        return first, last

    async def go_wrong(self, fault: str, writer: asyncio.StreamWriter) -> None:
        if fault == "die":
            while self.sound:  # noqa: ASYNC110 - what was asked before is answered
                await asyncio.sleep(0.001)
            os._exit(9)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "garbage":
            chunk(writer, b"data: {\xff not json\n\n" * 3)
        if fault == "error":
            piece(writer, {"error": {"message": "out of luck"}})
        if fault == "empty":
            writer.write(b"0\r\n\r\n")
        await writer.drain()


def choice(delta: dict[str, str], finish: str | None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "stub",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }


def words(body: dict[str, Any]) -> int:
    """Two tokens a word, and three for the template."""
    return 3 + sum(2 * len(message["content"].split()) for message in body["messages"])


def whole(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    writer.write((head + text).encode())


def piece(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, default=5.0)
    parser.add_argument("--tpot-ms", type=float, default=1.0)
    parser.add_argument("--prefill-us", type=float, default=0.0)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--fault-from", type=int, default=0)
    parser.add_argument("--cached", action="store_true")
    parser.add_argument("--no-usage", action="store_true")
    parser.add_argument("--keep-bodies", action="store_true")
    parser.add_argument("--kv-transfer-config")
    options, _ = parser.parse_known_args()
    server = await asyncio.start_server(
        Stub(options).serve, "127.0.0.1", options.port, backlog=1024
    )
    if not options.port:
        print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
