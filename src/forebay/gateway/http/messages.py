"""HTTP as the gateway has it: requests of clients, answers of engines, and failures as values.

`server.py` and `client.py` make these of the library's own; nothing above them sees that.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

Headers = list[tuple[str, str]]


class BodyFault(StrEnum):
    """Why a request's body was not read."""

    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    TOO_MANY = "too many"  # bodies of other requests have taken all the room
    BROKEN = "broken"  # it is not what its headers say


class Unanswered(NamedTuple):
    """No answer came: nothing of it was seen."""

    why: str  # without the request's content
    is_gone: bool = False  # no connection could be made
    is_ill: bool = False  # it was asked for its health, and said that it has none


class BrokenOff(NamedTuple):
    """An answer ended before its end."""

    why: str


class IncomingRequest(Protocol):
    """A client's request, and the way to answer it; its client going cancels who handles it."""

    method: str
    path: str  # as it came, with its query cut off
    query: str

    def header(self, name: str) -> str:
        """A header's value; empty: there is none."""

    def headers(self) -> Iterable[tuple[str, str]]:
        """All of them, as they came."""

    async def read_body(self, owner: str = "") -> bytes | BodyFault:
        """All of the body, within the limits of size and time.

        Bodies of one owner may take as much room as is left for others; an empty one, all of it.
        """

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer that is written piece by piece."""

    async def write(self, data: bytes) -> None:
        """A piece of it. Waits while the client is slow, so long as it may be."""

    async def end(self) -> None:
        """It is whole."""

    def break_off(self) -> None:
        """End the connection, so that the client sees that the answer is not whole."""

    async def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer at once."""
