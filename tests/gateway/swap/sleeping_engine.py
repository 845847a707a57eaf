"""An engine that sleeps and wakes as vLLM does, without a model; also as a process of its own.

    python -m tests.gateway.swap.sleeping_engine NAME [--weights FILE] [--ill FILE] --host HOST \\
        --port PORT

Asleep, it says that it is healthy and answers nothing, and what is under way waits. After level 2
it has no weights until they are loaded again, and says so in place of an answer. One that begins
where the file ILL is fails to compute a first token.
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PIECES = 8
FREE_PIECES = 3
PIECE_S = 0.05
PROBES = ("/v1/completions", "/v1/embeddings", "/pooling")


class SleepingEngine:
    """One engine; `faults` are modes of sleeping that fail, as vLLM fails: it stays paused.

    With the fault `probe` it computes no token for who asks whether it is awake, with `ill` nothing
    for anybody else.
    """

    def __init__(self, name: str, port: int = 0, weights: "Path | None" = None) -> None:
        self.name, self._file = name, weights
        self.weights: str | None = self._load()
        self.faults: set[str] = set()
        self.calls: list[str] = []  # all but looks, as they came
        self.running = 0
        self.level = 0
        self.tags: set[str] = set()
        self.awake = threading.Event()
        self.awake.set()
        self.may_go = threading.Event()  # beyond the first pieces of an answer
        self.may_go.set()
        self._lock = threading.Lock()  # guards `running`
        engine = self

        class Handler(_Handler):
            owner = engine

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.awake.set()
        self.may_go.set()
        self.server.shutdown()
        self.server.server_close()

    def sleep(self, level: int, mode: str) -> int:
        """The status."""
        if mode == "wait":
            while self.running:
                time.sleep(0.01)
        self.awake.clear()
        if mode in self.faults:
            return 500
        self.level, self.tags = level, {"weights", "kv_cache"}
        if level == 2:
            self.weights = None
        return 200

    def wake(self, tags: list[str]) -> None:
        self.tags -= set(tags) or {"weights", "kv_cache"}
        if not self.tags:
            self.awake.set()

    def rpc(self, method: str) -> Any:
        if method == "reload_weights":
            self.weights = self._load()
            return None
        assert method == "compute_weight_checksums"
        return [{"layer": self.weights}]

    def pieces(self, count: int) -> Iterator[str]:
        """Of an answer, as they are computed."""
        with self._lock:
            self.running += 1
        try:
            for at in range(count):
                if at >= FREE_PIECES:
                    self.may_go.wait()
                self.awake.wait()
                time.sleep(PIECE_S if count > 1 else 0)
                yield f"{at} {self.name} {self.weights};"
        finally:
            with self._lock:
                self.running -= 1

    def _load(self) -> str:
        return self._file.read_text() if self._file else "w"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: SleepingEngine

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        engine = self.owner
        found = {
            "/health": {},
            "/v1/models": {"data": [{"id": engine.name}]},
            "/is_sleeping": {"is_sleeping": not engine.awake.is_set()},
        }.get(self.path)
        self._say(404 if found is None else 200, found or {})

    def do_POST(self) -> None:
        engine = self.owner
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(content) if content else {}
        parts = urlsplit(self.path)
        asked = parse_qs(parts.query)
        if parts.path != "/v1/chat/completions":
            engine.calls.append(self.path if parts.path != "/collective_rpc" else body["method"])
        if parts.path == "/sleep":
            self._say(engine.sleep(int(asked["level"][0]), asked["mode"][0]), {})
        elif parts.path == "/wake_up":
            engine.wake(asked.get("tags", []))
            self._say(200, {})
        elif parts.path == "/collective_rpc":
            self._say(200, {"results": [engine.rpc(body["method"])]})
        elif "probe" in engine.faults and parts.path in PROBES:
            self._say(500, {})
        elif "ill" in engine.faults and parts.path == "/v1/chat/completions":
            self._say(503, {})
        elif parts.path == "/v1/completions":
            self._say(200, {"choices": [{"text": "".join(engine.pieces(1))}]})
        elif body.get("stream"):
            self._stream(body.get("max_tokens", PIECES))
        else:
            text = "".join(engine.pieces(body.get("max_tokens", 1)))
            self._say(200, {"choices": [{"message": {"content": text}}]})

    def _stream(self, count: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):
            for piece in self.owner.pieces(count):
                self._chunk(b"data: %b\n\n" % json.dumps({"text": piece}).encode())
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _say(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        with suppress(OSError):  # who asked may have gone
            self.end_headers()
            self.wfile.write(content)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--ill", type=Path)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parsed = parser.parse_args()
    engine = SleepingEngine(parsed.name, parsed.port, parsed.weights)
    engine.faults = {"probe"} if parsed.ill and parsed.ill.exists() else set()
    engine.server.serve_forever()


if __name__ == "__main__":
    main()
