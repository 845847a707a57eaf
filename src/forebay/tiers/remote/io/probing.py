"""Probes a store with a record that is put, read, verified and deleted.

The calls are those of stores and loads, made by the same child, in memory that both have mapped.
The record is an object beside the index, so that no host lists it and no recovery takes it for a
pack. One at a time; if the host dies, it is deleted with everything else that the host left.
"""

import secrets
from collections.abc import Callable
from typing import Final

from forebay.record.cipher import seal
from forebay.record.header import (
    KEY_BYTES,
    NAMESPACE_BYTES,
    ROOT,
    Damage,
    RecordHeader,
    RecordName,
    pack,
    payload_hash,
)
from forebay.record.region import Position
from forebay.sys.memory import PAGE_BYTES, zero
from forebay.tiers.contract import DropReason, MissReason
from forebay.tiers.remote.index.published import HOSTS
from forebay.tiers.remote.io.parts import RemoteParts
from forebay.tiers.remote.jobs import ProbeDone
from forebay.tiers.remote.packs import PackPlace, ReadRecord, verified
from forebay.tiers.remote.process.link import Results
from forebay.tiers.remote.process.messages import Action, Answer, StoreRequest
from forebay.tiers.remote.store import StoreFailure

_NAMESPACE: Final = bytes(NAMESPACE_BYTES)
_POSITION: Final = Position(0, 0)  # no pack has this sequence
_REQUESTS: Final = 3  # requests of one probe


class RemoteProbing:
    """The probe of one store. Owned by the tier's thread."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts
        self._object = f"{HOSTS}/{parts.host}/probe"
        self._done: ProbeDone | None = None
        self._name = RecordName(_NAMESPACE, 0, ROOT, ROOT)

    @property
    def is_idle(self) -> bool:
        """Whether no probe is under way, whose object could be left behind."""
        return self._done is None

    def step(self) -> None:
        """Begin the waiting probe, or answer it if the store is not in use."""
        if self._parts.takes_loads and not self._parts.allows(_REQUESTS):
            return
        done = self._parts.inbox.take_probe()
        if done is None:
            return
        self._done = done
        if not self._parts.takes_loads:
            self._end(self._parts.off_reason)
            return
        self._fill(self._parts.lending.probe()[1])
        self._call(Action.PUT, self._put)

    def _fill(self, record: memoryview) -> None:
        """A record of random bytes under a new name."""
        payload = record[PAGE_BYTES:]
        source = memoryview(secrets.token_bytes(len(payload)))
        self._name = RecordName(_NAMESPACE, 0, secrets.token_bytes(KEY_BYTES), ROOT)
        header = RecordHeader(self._name, len(source), payload_hash(source))
        keys = self._parts.keys
        key = None if keys is None else keys.current(self._name.tenant)
        if key is None:
            payload[:] = source
            pack(header, record[:PAGE_BYTES], _POSITION.pack())
        else:
            seal(header, _POSITION.pack(), key, source, record)

    def _put(self, answer: Answer) -> None:
        failed = self._failed(answer)
        if failed:
            self._delete(failed)
            return
        zero(self._parts.lending.probe()[1])  # so that what is found there was read
        self._call(Action.GET, self._got)

    def _got(self, answer: Answer) -> None:
        failed = self._failed(answer)
        if not failed:
            _, view = self._parts.lending.probe()
            payload = view[PAGE_BYTES:]
            place = PackPlace(self._object, *_POSITION, len(payload))
            read = ReadRecord(view[:PAGE_BYTES], payload, answer.count)
            found = verified(read, self._name, place, self._parts.keys)
            failed = MissReason.CORRUPT if isinstance(found, Damage) else ""
        self._delete(failed)

    def _delete(self, failed: str) -> None:
        if not self._parts.link.is_running:  # the next probe overwrites what is there
            self._end(failed)
            return
        self._call(Action.DELETE, lambda answer: self._end(failed or self._failed(answer)))

    def _call(self, action: Action, done: Callable[[Answer], None]) -> None:
        parts = self._parts
        buffers = () if action is Action.DELETE else (parts.lending.probe()[0],)
        request = StoreRequest(0, action, self._object, buffers=buffers)

        def ended(answer: Answer, _results: Results) -> None:
            done(answer)

        until = parts.clock.monotonic() + parts.options.call_s
        parts.call(request, until, ended)

    def _failed(self, answer: Answer) -> str:
        """Why a call failed, or "". A full store is no error."""
        if answer.failure is None:
            return ""
        if answer.failure is StoreFailure.FULL:
            return DropReason.NO_SPACE
        self._parts.failed()
        return MissReason.ABSENT if answer.failure is StoreFailure.ABSENT else MissReason.IO_ERROR

    def _end(self, failed: str) -> None:
        done, self._done = self._done, None
        assert done is not None
        self._parts.inbox.probe_ended()
        done(failed)
