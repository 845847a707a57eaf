"""A gateway process for tests, and small HTTP servers that stand for engines which misbehave."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from tests.listening import HangUp, ListeningServer
from tests.pool_process import HANG_S, environment, wait_until

MODEL: Final = "small"
EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"w"},"finish_reason":null}]}\n\n'
LAST: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)
STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class SmallEngine(ListeningServer):
    """Answers as an engine does; `behave` says what becomes of a request for an answer."""

    def __init__(self, behave: "Callable[[SmallEngine, Asked], Iterator[bytes]]") -> None:
        super().__init__()
        self.behave = behave
        self.asked: list[Asked] = []
        self.health = 200
        self.blocks = 99  # of 16 tokens, of its KV cache
        self.may_go = threading.Event()  # for behaviours that wait for the test
        self.gone = threading.Event()  # a connection with an answer under way was closed by us

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def replies(self, incoming: BinaryIO) -> Iterator[bytes]:
        while True:
            asked = Asked.read(incoming)
            if asked.path == "/health":
                yield whole(self.health, b"")
            elif asked.path == "/v1/models":
                yield whole(200, json.dumps({"data": [{"id": MODEL, "max_model_len": 7}]}).encode())
            elif asked.path == "/metrics":
                sizes = f'block_size="16",num_gpu_blocks="{self.blocks}"'
                yield whole(200, f"vllm:cache_config_info{{{sizes}}} 1\n".encode())
            else:
                self.asked.append(asked)
                asked.incoming = incoming
                yield from self.behave(self, asked)


class Asked:
    """A request as it came."""

    def __init__(self, line: str, headers: dict[str, str], body: bytes) -> None:
        self.method, self.path, _ = line.split(" ")
        self.headers, self.body = headers, body
        self.incoming: BinaryIO | None = None

    @classmethod
    def read(cls, incoming: BinaryIO) -> "Asked":
        line = incoming.readline().decode().strip()
        if not line:
            raise HangUp
        headers = {}
        while (header := incoming.readline().decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        return cls(line, headers, incoming.read(int(headers.get("content-length", 0))))


def whole(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER: Final = json.dumps(
    {
        "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 2},
    }
).encode()


def answers(_: SmallEngine, __: Asked) -> Iterator[bytes]:
    yield whole(200, ANSWER)


def says(status: int) -> Callable[[SmallEngine, Asked], Iterator[bytes]]:
    def behave(_: SmallEngine, __: Asked) -> Iterator[bytes]:
        yield whole(status, b'{"said": %d}' % status)

    return behave


def streams(_: SmallEngine, __: Asked) -> Iterator[bytes]:
    yield STREAM_HEAD + chunk(EVENT)
    yield chunk(EVENT[:20])
    yield chunk(EVENT[20:])
    yield chunk(LAST) + b"0\r\n\r\n"


def breaks(_: SmallEngine, __: Asked) -> Iterator[bytes]:
    """A stream that ends in the middle of its second event."""
    yield STREAM_HEAD + chunk(EVENT)
    yield chunk(EVENT[:20])
    raise HangUp


def hangs_up(_: SmallEngine, __: Asked) -> Iterator[bytes]:
    yield from ()
    raise HangUp


def babbles(_: SmallEngine, __: Asked) -> Iterator[bytes]:
    yield b"\xff\x00 secret words \r\n\r\n"
    raise HangUp


def goes_on(engine: SmallEngine, asked: Asked) -> Iterator[bytes]:
    """A stream without end, until its client closes the connection."""
    yield STREAM_HEAD + chunk(EVENT)
    assert asked.incoming is not None
    asked.incoming.read(1)  # nothing more is sent to us: this ends with the connection
    engine.gone.set()
    raise HangUp


def waits(engine: SmallEngine, _: Asked) -> Iterator[bytes]:
    """An answer when the test lets it."""
    engine.may_go.wait(HANG_S)
    yield whole(200, ANSWER)


class GatewayProcess:
    """`forebay gateway` in a process of its own, at a port that the kernel chose."""

    def __init__(self, place: Path, config: str) -> None:
        self.file = place / "gateway.toml"
        self.file.write_text(
            f'listen = "127.0.0.1:0"\n{config}' if "listen" not in config else config
        )
        self.log = place / "gateway.log"
        self.log.write_bytes(b"")
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "forebay.cli.main", "gateway", str(self.file)]
        begun = self.log.stat().st_size
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                words, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )

        def port() -> int:
            assert self.process.poll() is None, self.text()
            found = re.search(r"listening at [^ ]*:(\d+) ", self.text()[begun:])
            return int(found[1]) if found else 0

        wait_until(lambda: port() > 0, "the gateway", HANG_S)
        self.port = port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> int:
        os.kill(self.process.pid, number)
        return self.process.wait(HANG_S)

    def fetch(
        self, path: str, body: Any = None, method: str = "", **headers: str
    ) -> "tuple[int, dict[str, str], bytes]":
        """Status, headers by lower-case name, and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        with contextlib.closing(connection):
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method or ("GET" if body is None else "POST"), path, data, sent)
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, found, reply.read()

    def chat(self, words: str = "hello", **more: Any) -> "tuple[int, dict[str, str], bytes]":
        return self.fetch("/v1/chat/completions", chat(words, **more))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fetch("/status")[2])
        return found

    def condition(self, name: str) -> str:
        found = {each["name"]: each["condition"] for each in self.status()["engines"]}
        return str(found[name])

    def is_up(self, name: str) -> bool:
        return self.condition(name) == "up"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), HANG_S)


def chat(words: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": words}], **more}


def engine_table(name: str, url: str, **more: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    head = f'[[engine]]\nname = "{name}"\nurl = "{url}"\n'
    if "model" not in more:
        head += f'model = "{MODEL}"\n'
    return head + "\n".join(lines) + "\n"


@contextlib.contextmanager
def gateway(*engines: SmallEngine, config: str = "", **more: Any) -> Iterator[GatewayProcess]:
    """A gateway before these engines, called a, b, …, each of which it has seen to be up."""
    tables = "".join(
        engine_table(name, engine.url, **more)
        for name, engine in zip("abcdefgh", engines, strict=False)
    )
    with tempfile.TemporaryDirectory(prefix="fb-") as place:
        begun = GatewayProcess(Path(place), f"{config}\n{tables}")
        try:
            if "[[key]]" not in config:
                for name, _ in zip("abcdefgh", engines, strict=False):
                    wait_until(partial(begun.is_up, name), "an engine", HANG_S)
            yield begun
        finally:
            if begun.process.poll() is None:
                begun.kill()
        assert "a bug was caught" not in begun.text(), begun.text()
