"""HTTP as the gateway has it: requests of clients, answers of engines, and failures as values.

`server.py` and `client.py` make these from the library's objects, which nothing else sees.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

Headers = list[tuple[str, str]]


class BodyFault(StrEnum):
    """Why a request's body was not read."""

    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    TOO_MANY = "too many"  # bodies of other requests take all the room
    BROKEN = "broken"  # it does not agree with its headers


class Unanswered(NamedTuple):
    """No byte of an answer came."""

    why: str  # without the request's content
    is_gone: bool = False  # no connection could be made
    is_ill: bool = False  # `fetch`: it answered, but not with 200


class BrokenOff(NamedTuple):
    """An answer broke off before its end."""

    why: str


class IncomingRequest(Protocol):
    """A client's request, and how to answer it. Its task is cancelled if the client disconnects."""

    method: str
    path: str  # as it came, without its query
    query: str

    def header(self, name: str) -> str:
        """A header's value; empty if there is none."""

    def headers(self) -> Iterable[tuple[str, str]]:
        """All headers, as they came."""

    async def read_body(self, owner: str = "") -> bytes | BodyFault:
        """The whole body, within the limits of size and time.

        The bodies of one owner may take as much room as they leave free for others; without an
        owner, all of it.
        """

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer that is written piece by piece."""

    async def write(self, data: bytes) -> None:
        """Send a piece of the answer; waits for a slow client, up to a limit."""

    async def end(self) -> None:
        """The answer is complete."""

    def break_off(self) -> None:
        """End the connection, so that the client sees that the answer is incomplete."""

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole answer at once."""
