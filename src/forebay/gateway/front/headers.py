"""Which headers of a message are passed on, and which belong to one connection alone."""

from collections.abc import Collection, Iterable
from typing import Final

from forebay.gateway.http.messages import Headers

# Of one connection and not of a message, and what the gateway says itself.
HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "proxy-connection"),
    }
)
NOT_SENT: Final = HOP | {
    *("host", "content-length", "authorization", "x-api-key", "cookie", "expect"),
    "accept-encoding",  # what an answer took is read in it, so it comes as it is
}


def without(headers: Iterable[tuple[str, str]], names: Collection[str]) -> Headers:
    """Headers less these, and less those that `Connection` names: they are of one hop."""
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
