"""Which headers of a message are passed on, and which belong to one connection alone."""

from collections.abc import Collection, Iterable
from typing import Final

from forebay.gateway.http.messages import Headers

# Headers of one connection rather than of a message, and those that the gateway sets itself.
HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "proxy-connection"),
    }
)
NOT_SENT: Final = HOP | {
    *("host", "content-length", "authorization", "x-api-key", "cookie", "expect"),
    "accept-encoding",  # the gateway reads the answer's token counts, so it must not be compressed
}


def without(headers: Iterable[tuple[str, str]], names: Collection[str]) -> Headers:
    """The headers without these, and without those that `Connection` names."""
    listed = [(name, name.lower(), value) for name, value in headers]
    hop = {
        word.strip().lower()
        for _, name, value in listed
        if name == "connection"
        for word in value.split(",")
    }
    return [
        (name, value) for name, lower, value in listed if lower not in names and lower not in hop
    ]
