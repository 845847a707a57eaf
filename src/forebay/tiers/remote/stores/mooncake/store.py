"""Mooncake Store as a store: memory of many machines, behind one master.

A value is an object as it was put; `lists.py` has what Mooncake does not say: names, sizes, times.
Packs may be evicted by the master, the rest is pinned. What a process of Mooncake held is gone with
it: for some seconds the master does not know that, and reading fails; then it is absent. After a
restart of the master everything is.
"""

from collections.abc import Sequence
from typing import Final

from forebay.sys.clock import Clock
from forebay.tiers.remote.index.published import HOSTS
from forebay.tiers.remote.packs import PACKS
from forebay.tiers.remote.store import LISTED_MAX, ObjectStore, StoredObject, StoreFailure, is_name
from forebay.tiers.remote.stores.mooncake.client import MasterAccess, MooncakeClient
from forebay.tiers.remote.stores.mooncake.lists import Lists, listed
from forebay.urls import RemoteUrl

_HOST_PART: Final = {HOSTS: 1, PACKS: 2}  # by the first part of a name: which part is the host


class MooncakeStore(ObjectStore):
    """What is below a prefix of one master's keys."""

    def __init__(self, url: RemoteUrl, host: str, clock: Clock | None = None) -> None:
        """Connects to nothing yet; all that is put is below the names of this host."""
        server, _, self._prefix = url.path.rpartition("/")
        master, _, port = server.rpartition(":")
        access = MasterAccess(
            (master.strip("[]"), int(port)),
            url.option("protocol") or "tcp",
            url.option("devices"),
            url.option("address"),
            int(url.option("replicas") or 1),
        )
        self._host = host
        self._client = MooncakeClient(access)
        self._lists = Lists(self._client, self._prefix, host, clock or Clock())

    def put(self, name: str, buffers: Sequence[memoryview]) -> StoreFailure | None:
        """See ObjectStore. Nothing else than an object with bytes can be put."""
        assert _host_of(name) == self._host
        try:
            failure = self._lists.add(name, sum(map(len, buffers)))
            if failure is not None:
                return failure
            pinned = not name.startswith(f"{PACKS}/")
            return self._client.put(self._key(name), buffers, pinned=pinned)
        finally:
            self._lists.put_ended(name)

    def get(self, name: str, at: int, buffers: Sequence[memoryview]) -> int | StoreFailure:
        """See ObjectStore."""
        return self._client.get(self._key(name), at, buffers)

    def listing(self, prefix: str) -> list[StoredObject] | StoreFailure:
        """See ObjectStore."""
        prefix = prefix.strip("/")
        host = _host_of(prefix)
        hosts = self._lists.hosts() if host is None else [host]
        if isinstance(hosts, StoreFailure):
            return hosts
        if prefix == HOSTS:
            return [StoredObject(f"{each}/", 0, 0.0) for each in hosts if is_name(each)]
        inner: set[str] = set()
        objects: list[StoredObject] = []
        for each in hosts:
            found = self._lists.of(each)
            if found is None and host is None:
                continue  # one host's damaged list takes the store from none of the others
            if found is None or isinstance(found, StoreFailure):
                return found or StoreFailure.FAILED
            directories, some = listed(found, prefix)
            inner |= directories
            objects += some
        present = self._present(prefix, [each for each in objects if is_name(each.name)])
        if isinstance(present, StoreFailure):
            return present
        found_below = [StoredObject(f"{name}/", 0, 0.0) for name in filter(is_name, inner)]
        return [*found_below, *present][:LISTED_MAX]

    def delete(self, name: str) -> StoreFailure | None:
        """See ObjectStore."""
        failure = self._client.remove(self._key(name))
        if failure is not None:
            return failure
        host = _host_of(name)
        assert host is not None
        if host == self._host:
            self._lists.drop(name)
        else:
            self._leave_if_empty(host)
        return None

    def close(self) -> None:
        """Leave the master."""
        self._client.close()

    def _present(
        self, prefix: str, objects: list[StoredObject]
    ) -> list[StoredObject] | StoreFailure:
        """Those that exist; what of this host's does not is in its list no more."""
        names = [f"{prefix}/{each.name}" for each in objects]
        exist = self._client.exist([self._key(name) for name in names])
        if isinstance(exist, StoreFailure):
            return exist
        present: list[StoredObject] = []
        for each, name, is_there in zip(objects, names, exist, strict=True):
            if is_there:
                present.append(each)
            elif _host_of(name) == self._host:
                self._lists.drop(name)
        return present

    def _leave_if_empty(self, host: str) -> None:
        """Whatever a host that is gone had put is deleted: then it is no member any more."""
        found = self._lists.of(host)
        known = found if isinstance(found, dict) else {}
        names = [f"{directory}/{name}" for directory in known for name in known[directory]]
        exist = self._client.exist([self._key(name) for name in names])
        if isinstance(found, dict) and exist == [False] * len(names):
            self._lists.leave(host)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _host_of(name: str) -> str | None:
    """Whose an object is, or whatever is below a prefix; None if several hosts may have some."""
    first, *parts = name.split("/")
    at = _HOST_PART.get(first)
    return None if at is None or len(parts) < at else parts[at - 1]
