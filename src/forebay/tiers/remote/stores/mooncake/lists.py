"""What Mooncake does not say by itself: which hosts there are, what each has put, and the time.

    PREFIX/members       the names of hosts, and a time in seconds
    PREFIX/lists/HOST    what a host has put: directory, name, size and time of each object

A name stands in its host's list before the object is put, so what is in the store is in a list; the
list may have more, and whoever lists asks which of it exists. A host writes its own list alone. The
members are written by all: one that is overwritten by another adds itself again when it looks the
next time, and whoever finds them gone writes down those that it knew. No clocks are compared: the
time begins at nothing with the first host, and every other goes on from that of the members.

Each of these objects ends with its hash. They are lost as others are, with the process that has
them; a host's list is then written anew with its next object.
"""

import threading
from typing import Final, TypeVar

import msgspec
import xxhash

from forebay.sys import memory
from forebay.sys.clock import Clock
from forebay.tiers.remote.store import LISTED_MAX, StoredObject, StoreFailure
from forebay.tiers.remote.stores.mooncake.client import MooncakeClient

_HASH_BYTES: Final = 16
_APART_S: Final = 600.0  # the time of the members is put forward when it is so far behind
_MEMBERS_MAX: Final = 4096  # hosts
_OBJECT_BYTES_MAX: Final = 64 << 20  # of a list
_Content = TypeVar("_Content")


class ListedObject(msgspec.Struct, array_like=True):
    """One object of a list."""

    size_bytes: int
    modified_s: float


HostList = dict[str, dict[str, ListedObject]]  # by directory and last part of the name


class Members(msgspec.Struct, array_like=True):
    """All hosts."""

    time_s: float
    hosts: list[str]


class Lists:
    """The lists of all hosts, and the members; any thread may ask."""

    def __init__(self, client: MooncakeClient, prefix: str, host: str, clock: Clock) -> None:
        self._client, self._prefix, self._host, self._clock = client, prefix, host, clock
        self._lock = threading.Lock()  # guards all below, and that what is written is in order
        self._own: HostList | None = None  # None: not read yet
        self._coming: set[str] = set()  # names that are listed and not put yet
        self._known: set[str] = {host}
        self._ahead_s = -clock.monotonic()  # of this process's clock

    def add(self, name: str, size_bytes: int) -> StoreFailure | None:
        """Have an object in this host's list before it is put."""
        with self._lock:
            own = self._read_own()
            if isinstance(own, StoreFailure):
                return own
            directory, _, last = name.rpartition("/")
            objects = own.setdefault(directory, {})
            is_new = last not in objects
            if is_new and sum(map(len, own.values())) >= LISTED_MAX:
                return StoreFailure.FULL
            if is_new:
                self._coming.add(name)
            objects[last] = ListedObject(size_bytes, self._time_s())
            return self._write(f"lists/{self._host}", own)

    def put_ended(self, name: str) -> None:
        """An object that was added has been put, or could not be."""
        with self._lock:
            self._coming.discard(name)

    def drop(self, name: str) -> None:
        """An object is gone; the list is written with the next one that is added."""
        directory, _, last = name.rpartition("/")
        with self._lock:
            if self._own is not None and directory in self._own:
                self._own[directory].pop(last, None)
                if not self._own[directory]:
                    del self._own[directory]

    def of(self, host: str) -> HostList | StoreFailure | None:
        """What a host has put, or may have; None: its list is damaged.

        Of this host without what is being put: that it does not exist yet does not mean that it is
        gone.
        """
        with self._lock:
            if host != self._host:
                return self._read_list(host)
            own = self._read_own()
            if isinstance(own, StoreFailure):
                return own
            return {
                directory: {
                    last: each
                    for last, each in objects.items()
                    if f"{directory}/{last}" not in self._coming
                }
                for directory, objects in own.items()
            }

    def hosts(self) -> list[str] | StoreFailure:
        """All hosts, this one among them from now on."""
        with self._lock:
            return self._join(leaving=None)

    def leave(self, host: str) -> None:
        """Nothing is left of another host."""
        with self._lock:
            self._client.remove(self._key(f"lists/{host}"))
            self._join(leaving=host)

    def _join(self, leaving: str | None) -> list[str] | StoreFailure:
        found = self._read("members", Members)
        if isinstance(found, StoreFailure) and found is not StoreFailure.ABSENT:
            return found
        members = found if isinstance(found, Members) else Members(0.0, [])
        hosts = {*members.hosts[:_MEMBERS_MAX]} or self._known
        hosts = (hosts | {self._host}) - {leaving}
        self._ahead_s = max(self._ahead_s, members.time_s - self._clock.monotonic())
        now = self._time_s()
        if {*members.hosts} != hosts or now - members.time_s > _APART_S:
            failure = self._write("members", Members(now, sorted(hosts)))
            if failure is not None:
                return failure
        self._known = hosts
        return sorted(hosts)

    def _time_s(self) -> float:
        return self._clock.monotonic() + self._ahead_s

    def _read_own(self) -> HostList | StoreFailure:
        """What this host has put: at first as an earlier process has listed it."""
        if self._own is None:
            found, joined = self._read_list(self._host), self._join(leaving=None)
            if isinstance(found, StoreFailure):
                return found
            if isinstance(joined, StoreFailure):
                return joined
            self._own = found or {}
        return self._own

    def _read_list(self, host: str) -> HostList | StoreFailure | None:
        found = self._read(f"lists/{host}", HostList)
        return {} if found is StoreFailure.ABSENT else found

    def _read(self, name: str, kind: type[_Content]) -> _Content | StoreFailure | None:
        """What was written under a name; None if what is there is damaged or half written."""
        key = self._key(name)
        size = self._client.size(key)
        if isinstance(size, StoreFailure):
            return size
        buffer = memory.allocate(min(size, _OBJECT_BYTES_MAX))[:size]
        count = self._client.get(key, 0, [buffer])
        if isinstance(count, StoreFailure):
            return count
        data = bytes(buffer[:count])
        body, digest = data[:-_HASH_BYTES], data[-_HASH_BYTES:]
        if xxhash.xxh3_128_digest(body) != digest:
            return None
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _write(self, name: str, content: object) -> StoreFailure | None:
        body = msgspec.msgpack.encode(content)
        parts = [memoryview(body), memoryview(xxhash.xxh3_128_digest(body))]
        return self._client.put(self._key(name), parts, pinned=True)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def listed(host_list: HostList, prefix: str) -> tuple[set[str], list[StoredObject]]:
    """What a list has right below a prefix: directories, and objects that may be there."""
    below = f"{prefix}/" if prefix else ""
    inner = {
        directory[len(below) :].partition("/")[0]
        for directory in host_list
        if directory.startswith(below) and directory != prefix
    }
    objects = host_list.get(prefix, {}).items()
    return inner, [StoredObject(name, each.size_bytes, each.modified_s) for name, each in objects]
