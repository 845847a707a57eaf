"""An OpenAI-compatible server that says nothing of meaning, for tests of whoever asks one.

Run as a program it is a process that listens at the port behind `--port`.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FIRST_S = 0.05  # until the first word


class Handler(BaseHTTPRequestHandler):
    """A server that streams as vLLM does; model `refuse` is refused, model `end` breaks off."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] == "refuse":
            self.send_error(404, "no such model")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(FIRST_S)
        self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for number in range(body["max_tokens"]):
            self._event({"choices": [{"delta": {"content": f"w{number} "}}]})
            if body["model"] == "end":
                self.close_connection = True
                return
        tokens = sum(len(message["content"].split()) for message in body["messages"])
        usage = {"prompt_tokens": tokens, "completion_tokens": body["max_tokens"]}
        details = {"prompt_tokens_details": {"cached_tokens": tokens // 2}}
        self._event({"choices": [], "usage": {**usage, **details}})
        self._send(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        # Chunks need not end where events do.
        self._send(data[:9])
        self._send(data[9:])

    def _send(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
