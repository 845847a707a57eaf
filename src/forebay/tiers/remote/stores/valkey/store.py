"""Valkey or Redis as a store: one key per object, in memory that the server may evict.

A value begins with the object's size and the server's time at which it was put, since servers keep
neither. An evicted key is absent, as if it had been deleted. Packs expire, so that a server that
evicts only what expires (`volatile-lru`) keeps the index, and so that nothing is left of hosts that
are all gone. Nothing is retried.
"""

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from forebay.sys.clock import Clock
from forebay.tiers.remote.packs import PACKS
from forebay.tiers.remote.store import LISTED_MAX, ObjectStore, StoredObject, StoreFailure, is_name
from forebay.tiers.remote.stores.valkey.resp import (
    Reply,
    RespConnection,
    ServerError,
    argument,
    command,
)
from forebay.tiers.remote.stores.valkey.servers import Keyed, RefusedError, Servers
from forebay.urls import RemoteUrl

_PUT_FACTOR: Final = 3  # a pack may take so many times as long as another request
_LIST_FACTOR: Final = 4  # and so may a listing, which has many of them
_TTL_S: Final = 7 * 86_400
_HEAD: Final = struct.Struct("<8sQQ")  # magic, size, microseconds of the server's clock
_MAGIC: Final = b"FOREBAYV"
_SCANNED: Final = 1000  # keys that one request looks at
_SCANS_MAX: Final = 1 << 16  # requests of one listing to one server
_HEADS: Final = 256  # that are asked for at once
_FAILURES: Final = {
    "OOM": StoreFailure.FULL,
    "NOAUTH": StoreFailure.DENIED,
    "NOPERM": StoreFailure.DENIED,
}
_Result = TypeVar("_Result")


class ValkeyStore(ObjectStore):
    """What is below a prefix of one database."""

    def __init__(self, url: RemoteUrl, clock: Clock | None = None) -> None:
        """Connects to nothing yet."""
        self._prefix = url.path.rpartition("/")[2]
        self._timeout_s = url.timeout_s
        self._ttl_s = int(url.option("ttl") or _TTL_S)
        self._servers = Servers(url, clock)

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """See ObjectStore."""
        size, key = sum(map(len, buffers)), self._key(name)
        is_pack = name.startswith(f"{PACKS}/")
        expiry = [argument(b"EX"), argument(b"%d" % self._ttl_s)] if is_pack else []
        first = b"*%d\r\n" % (3 + len(expiry)) + argument(b"SET") + argument(key.encode())
        first += b"$%d\r\n" % (_HEAD.size + size)

        def talk(keyed: Keyed) -> Reply:
            now = keyed.connection.ask("TIME")
            if isinstance(now, ServerError):
                return now
            keyed.send([first, _HEAD.pack(_MAGIC, size, _us(now)), *buffers, b"\r\n", *expiry])
            return keyed.connection.reply()

        done = self._ask(key, _PUT_FACTOR, talk)
        return None if done == b"OK" else _failure(done)

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """See ObjectStore."""
        key, last = self._key(name), at + _HEAD.size + sum(map(len, buffers)) - 1

        def whole(keyed: Keyed) -> Reply:
            head = memoryview(bytearray(_HEAD.size))
            keyed.send([command("GETRANGE", key, 0, last)])
            count = keyed.connection.value_into([head, *buffers])
            return _behind(head, count, last + 1) if isinstance(count, int) else count

        def part(keyed: Keyed) -> Reply:
            keyed.send([command("GETRANGE", key, at + _HEAD.size, last)])
            count = keyed.connection.value_into(buffers)
            return count if count != 0 else _nothing(keyed.ask("EXISTS", key))

        found = self._ask(key, 1, part if at else whole)
        if found is None:
            return StoreFailure.ABSENT
        return found if isinstance(found, int) else _failure(found)

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """See ObjectStore. If there is more than fits, the rest is not seen."""
        deadline = self._servers.until(self._timeout_s * _LIST_FACTOR)
        above = self._key(prefix.strip("/") + "/" if prefix.strip("/") else "")

        def listed() -> list[StoredObject]:
            found: dict[str, StoredObject] = {}
            for server in self._servers.primaries(deadline):
                with self._servers.connected(server, deadline) as connection:
                    for each in _listed(connection, above):
                        found[each.name] = each
            return list(found.values())[:LISTED_MAX]

        return self._attempt(listed)

    def delete(self, name: str) -> StoreFailure | None:
        """See ObjectStore."""
        key = self._key(name)
        done = self._ask(key, 1, lambda keyed: keyed.ask("UNLINK", key))
        return None if isinstance(done, int) else _failure(done)

    def close(self) -> None:
        """Close the idle connections."""
        self._servers.close()

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _ask(self, key: str, factor: int, talk: Callable[[Keyed], Reply]) -> Reply | StoreFailure:
        deadline = self._servers.until(self._timeout_s * factor)
        return self._attempt(lambda: self._servers.ask(key, deadline, talk))

    def _attempt(self, call: Callable[[], _Result]) -> _Result | StoreFailure:
        try:
            return call()
        except RefusedError as error:
            return _FAILURES.get(error.code, StoreFailure.FAILED)
        except (OSError, ValueError):
            return StoreFailure.FAILED


def _failure(answer: Reply | StoreFailure) -> StoreFailure:
    """Why a call failed; an answer that none can mean is a failure too."""
    return answer if isinstance(answer, StoreFailure) else StoreFailure.FAILED


def _us(time: Reply) -> int:
    """The server's clock."""
    match time:
        case [bytes(seconds), bytes(microseconds)]:
            return (int(seconds) * 1_000_000 + int(microseconds)) % (1 << 63)
    raise ValueError(time)


def _nothing(exists: Reply) -> Reply:
    """What it means if no bytes came: the object ends before, or there is none."""
    match exists:
        case 1:
            return 0
        case 0:
            return None
        case ServerError():
            return exists
    raise ValueError(exists)


def _behind(head: memoryview, count: int, asked: int) -> int | None:
    """How many bytes of an object came after its head; None if there is no object."""
    if not count:
        return None
    magic, size, _ = _HEAD.unpack(head)
    if magic != _MAGIC or count != min(asked, _HEAD.size + size):  # not of ours
        raise ValueError(count)
    return count - _HEAD.size


def _listed(connection: RespConnection, above: str) -> Iterator[StoredObject]:
    """What one server has right below a prefix.

    That its keys are looked at must not make them appear to be in use; servers that are too old for
    that, or do not allow it, evict in a less exact order.
    """
    connection.ask("CLIENT", "NO-TOUCH", "ON")
    names = _scanned(connection, above)
    for name in (name for name in names if name.endswith("/")):
        yield StoredObject(name, 0, 0.0)
    objects = iter([name for name in names if not name.endswith("/")])
    while some := list(itertools.islice(objects, _HEADS)):
        last = _HEAD.size - 1
        connection.send([command("GETRANGE", above + name, 0, last) for name in some])
        for name in some:
            head = _text(connection.reply())
            if len(head) == _HEAD.size and head.startswith(_MAGIC):
                _, size, modified_us = _HEAD.unpack(head)
                yield StoredObject(name, size, modified_us / 1e6)
    connection.ask("CLIENT", "NO-TOUCH", "OFF")


def _scanned(connection: RespConnection, above: str) -> set[str]:
    """The names right below a prefix; one with a slash at its end has more below it."""
    found: set[str] = set()
    cursor = b"0"
    for _ in range(_SCANS_MAX):
        match connection.ask("SCAN", cursor, "MATCH", f"{above}*", "COUNT", _SCANNED):
            case [bytes(cursor), list(keys)]:
                for key in keys:
                    name, slash, _ = _text(key).decode("latin-1")[len(above) :].partition("/")
                    found.update([name + slash] if is_name(name) else [])
            case ServerError() as error:
                raise RefusedError(error)
            case other:
                raise ValueError(other)
        if cursor == b"0" or len(found) >= LISTED_MAX:
            return found
    raise ValueError(_SCANS_MAX)  # what was not seen must not be taken for gone


def _text(reply: Reply) -> bytes:
    match reply:
        case bytes():
            return reply
        case ServerError():
            raise RefusedError(reply)
    raise ValueError(reply)
