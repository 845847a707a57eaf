#!/usr/bin/env -S python3 -I -S
"""Exit 0 if an HTTP port of this container answers 200: for health checks of containers.

    forebay-ready                     the pool: /readyz at FOREBAY_METRICS_ADDRESS, with its token
    forebay-ready 8000 /health        another port of this host, without a token

It needs Python's standard library alone and none of Forebay, so that it costs a few hundredths of
a second where `forebay health` takes one: a probe comes every few seconds.
"""

import os
import socket
import sys

ADDRESS = "127.0.0.1:7411"
TIMEOUT_S = 4.0  # the pool itself says after two that it is busy
ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - listened at, so here too


def request() -> tuple[str, int, bytes]:
    """Whom to ask, and what."""
    if len(sys.argv) > 1:
        host, port, path, token = "127.0.0.1", sys.argv[1], sys.argv[2], ""
    else:
        host, _, port = os.environ.get("FOREBAY_METRICS_ADDRESS", ADDRESS).rpartition(":")
        host, path, token = ANYWHERE.get(host, host), "/readyz", ""
        if file := os.environ.get("FOREBAY_METRICS_TOKEN_FILE"):
            with open(file) as opened:  # noqa: PTH123 - pathlib takes longer to import
                token = f"Authorization: Bearer {opened.read().strip()}\r\n"
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{token}Connection: close\r\n\r\n"
    return host.strip("[]"), int(port), head.encode()


def main() -> int:
    """Ask, and say what is wrong in one line."""
    try:
        host, port, head = request()
        with socket.create_connection((host, port), TIMEOUT_S) as link:
            link.settimeout(TIMEOUT_S)
            link.sendall(head)
            answer = link.recv(64).decode("latin-1").split("\r\n")[0]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if answer.split(" ")[1:2] == ["200"]:
        return 0
    print(answer, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
