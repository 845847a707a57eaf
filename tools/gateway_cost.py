"""What the gateway costs: CPU a request and a streamed event, and the time to the first token.

    python tools/gateway_cost.py [--requests 2000] [--events 200]

Prints figures of one run: CPU seconds of the gateway's process as the kernel counts them, divided
by requests of an 8 kB body and by streamed events; and the ratio of times to the first token,
through the gateway and direct, asked in turns of an engine that takes `--ttft-ms` for it. The bars
are 1 ms, 60 us and 1.02. The engine is a small server of this tool's own, in a process of its own.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

EVENT = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"small",'
EVENT += (
    b'"choices":[{"index":0,"delta":{"content":"word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
ANSWER = b'{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":2000}}'


async def engine(ttft_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine as fast as can be: an answer, or a stream of as many events as are asked for."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            path = head.split()[1]
            if path == "/v1/models":
                whole(writer, b'{"data":[{"id":"small"}]}')
            elif b'"stream":true' in body:
                await stream(writer, int(body.rpartition(b'"max_tokens":')[2].rstrip(b"}")), ttft_s)
            else:
                whole(writer, b"" if path != "/v1/chat/completions" else ANSWER)
            await writer.drain()
            if fields.get("connection") == "close":
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


def whole(writer: asyncio.StreamWriter, body: bytes) -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
    writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)


async def stream(writer: asyncio.StreamWriter, events: int, ttft_s: float) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await asyncio.sleep(ttft_s)
    writer.write(head)
    for _ in range(events):
        writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        await writer.drain()
        await asyncio.sleep(0.002)  # each event is a packet of its own, as an engine's are
    writer.write(b"0\r\n\r\n")


def body_of(events: int) -> bytes:
    is_stream = "true" if events else "false"
    words = f'{{"model":"small","messages":[{{"role":"user","content":"{"x" * 8000}"}}],'
    return f'{words}"stream":{is_stream},"max_tokens":{events}}}'.encode()


async def ask(port: int, body: bytes) -> float:
    """Seconds to the first byte of the body; reads to the answer's end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    began = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    await reader.read(1)
    first_s = time.perf_counter() - began
    await reader.read()
    writer.close()
    return first_s


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace, port: int, direct: int, pid: int) -> None:
    plain, streamed = body_of(0), body_of(options.events)
    for _ in range(50):
        await ask(port, plain)
    before = cpu_s(pid)
    for _ in range(options.requests // 4):
        await asyncio.gather(*(ask(port, plain) for _ in range(4)))
    request_s = (cpu_s(pid) - before) / (options.requests // 4 * 4)
    print(f"CPU a request        {request_s * 1e3:.3f} ms (bar 1)")
    streams = max(4, options.requests // 25)
    before = cpu_s(pid)
    for _ in range(streams // 4):
        await asyncio.gather(*(ask(port, streamed) for _ in range(4)))
    stream_s = (cpu_s(pid) - before) / (streams // 4 * 4) - request_s
    print(f"CPU a streamed event {stream_s / options.events * 1e6:.1f} us (bar 60)")
    short = body_of(1)
    times: dict[int, list[float]] = {port: [], direct: []}
    for _ in range(options.turns):
        for each, taken in times.items():
            taken.append(await ask(each, short))
    through, alone = (statistics.median(times[each]) for each in (port, direct))
    medians = f"medians {through:.4f} and {alone:.4f} s"
    print(f"TTFT, through/direct {through / alone:.4f} (bar 1.02; {medians})")


async def serve(ttft_s: float) -> None:
    server = await asyncio.start_server(partial(engine, ttft_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--ttft-ms", type=float, default=150.0, help="of the engine, for the ratio")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.ttft_ms / 1e3))
    flags = ["--serve", f"--ttft-ms={options.ttft_ms}"]
    words = [sys.executable, __file__, *flags]
    serving = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    direct = int(serving.stdout.readline())
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "gateway.toml"
        file.write_text(
            'listen = "127.0.0.1:0"\n[[engine]]\nname = "a"\nmodel = "small"\n'
            f'url = "http://127.0.0.1:{direct}"\n'
        )
        words = [sys.executable, "-m", "forebay.cli.main", "gateway", str(file)]
        gateway = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            port = port_of(gateway)
            print(f"load of this machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
            asyncio.run(measure(options, port, direct, gateway.pid))
        finally:
            for process in (gateway, serving):
                process.terminate()
                process.wait()


def port_of(gateway: "subprocess.Popen[str]") -> int:
    assert gateway.stderr is not None
    for line in gateway.stderr:
        if "listening at " in line:
            return int(line.split("listening at ")[1].split()[0].rpartition(":")[2])
    raise SystemExit("the gateway ended")


if __name__ == "__main__":
    main()
