"""Queues of a remote store: loads in order, and stores gathered into packs."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay.record.header import Digest, RecordName
from forebay.tiers.contract import DropReason, LoadOutcome, MissReason, StoreOutcome
from forebay.tiers.remote.index.table import TableRow
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.packs import PackPlace, pack_bytes

ProbeDone = Callable[[str], None]  # called with what failed; "": the record came back exact


@dataclass(frozen=True, slots=True, eq=False)
class RemoteLoad:
    """One load; the target is the tier's until `done` is called."""

    name: RecordName
    place: PackPlace
    row: TableRow | None  # row of another host's record; None: our own record
    target: memoryview
    done: Callable[[LoadOutcome], None]
    deadline: float  # monotonic; a miss if not begun by then


@dataclass(frozen=True, slots=True, eq=False)
class RemoteStore:
    """One store; the source is the tier's until `done` is called."""

    name: RecordName
    source: memoryview
    length: int
    done: Callable[[StoreOutcome], None]
    digest: Digest | None  # of the payload, where it is known


class DeleteOrder:
    """Something that a caller waits for while the tier's thread does it."""

    def __init__(
        self, namespace: bytes | None = None, tenant: bytes | None = None, *, is_erasure: bool
    ) -> None:
        """An erasure is of a namespace, of a tenant, or (if both are None) of everything."""
        self.namespace, self.tenant, self.is_erasure = namespace, tenant, is_erasure
        self.names: dict[str, int] | None = None  # packs that must be gone → records
        self.count = 0  # records that are gone
        self.is_partial = False  # some packs of the tenant may not be known yet
        self._done = threading.Event()

    @property
    def is_whole(self) -> bool:
        """Whether everything ordered was done, once the order has ended."""
        return self.names == {} and not self.is_partial

    def end(self) -> None:
        """The order is done, or cannot be."""
        self._done.set()

    def wait(self) -> None:
        """Wait until the order has ended."""
        self._done.wait()


class RememberOrder:
    """A tenant that a store is to remember as forgotten; a caller waits until it does."""

    def __init__(self, tenant: bytes) -> None:
        """One more than it remembers already."""
        self.tenant = tenant
        self.is_kept = False  # durably, as far as the store says
        self._done = threading.Event()

    def end(self, *, is_kept: bool) -> None:
        """It is remembered (`is_kept`), or that failed."""
        self.is_kept = is_kept
        self._done.set()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._done.wait()


class Inbox:
    """What any thread leaves for the tier's thread. The lock guards everything here."""

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._is_closed = False
        self._loads: deque[RemoteLoad] = deque()
        self._stores: deque[RemoteStore] = deque()
        self._orders: deque[DeleteOrder | RememberOrder] = deque()
        self._probe: ProbeDone | None = None  # that waits
        self._is_probing = False  # one waits or is under way
        self._waiting_loads = 0
        self._waiting_bytes = 0

    def put_load(self, job: RemoteLoad) -> MissReason | None:
        """Leave a load; the reason if it is refused."""
        with self._lock:
            if self._is_closed:
                return MissReason.TIER_OFF
            if self._waiting_loads >= self._options.read_queue_max:
                return MissReason.BUSY
            self._waiting_loads += 1
            self._loads.append(job)
        return None

    def put_store(self, job: RemoteStore) -> DropReason | None:
        """Leave a store; the reason if it is refused."""
        with self._lock:
            if self._is_closed:
                return DropReason.TIER_OFF
            if self._waiting_bytes + job.length > self._options.write_queue_bytes:
                return DropReason.BUSY
            self._waiting_bytes += job.length
            self._stores.append(job)
        return None

    def put_order(self, order: DeleteOrder | RememberOrder) -> bool:
        """Leave an order; False if the tier is closed."""
        with self._lock:
            if not self._is_closed:
                self._orders.append(order)
            return not self._is_closed

    def take(self) -> tuple[list[RemoteLoad], list[RemoteStore], list[DeleteOrder | RememberOrder]]:
        """Everything left since the last call."""
        with self._lock:
            taken = list(self._loads), list(self._stores), list(self._orders)
            for each in (self._loads, self._stores, self._orders):
                each.clear()
        return taken

    def put_probe(self, done: ProbeDone) -> MissReason | None:
        """Leave a probe; the reason if it is refused: there is one at a time."""
        with self._lock:
            if self._is_closed:
                return MissReason.TIER_OFF
            if self._is_probing:
                return MissReason.BUSY
            self._probe, self._is_probing = done, True
        return None

    def take_probe(self) -> ProbeDone | None:
        """The waiting probe, if any."""
        with self._lock:
            taken, self._probe = self._probe, None
        return taken

    def probe_ended(self) -> None:
        """The probe has ended, so another one may come."""
        with self._lock:
            self._is_probing = False

    def load_begins(self) -> None:
        """A load does not wait any more."""
        with self._lock:
            self._waiting_loads -= 1

    def store_ended(self, job: RemoteStore) -> None:
        """A store was answered."""
        with self._lock:
            self._waiting_bytes -= job.length

    def close(self) -> None:
        """Accept nothing any more."""
        with self._lock:
            self._is_closed = True


@dataclass(slots=True)
class _OpenPack:
    since: float
    jobs: list[RemoteStore] = field(default_factory=list)
    size_bytes: int = 0


class Gathering:
    """Stores to be put as packs: one open pack per namespace and tenant. The tier's thread's."""

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._open: dict[tuple[bytes, bytes], _OpenPack] = {}  # by namespace and tenant
        self._full: deque[list[RemoteStore]] = deque()

    def __bool__(self) -> bool:
        return bool(self._open or self._full)

    def add(self, job: RemoteStore, now: float, limit_bytes: int) -> None:
        """Put a record into the pack of its namespace and tenant, full with so many bytes."""
        owner = (job.name.namespace, job.name.tenant)
        pack = self._open.setdefault(owner, _OpenPack(now))
        pack.jobs.append(job)
        pack.size_bytes += pack_bytes([job.length])
        is_full = pack.size_bytes >= limit_bytes
        if is_full or len(pack.jobs) == self._options.pack_records_max:
            self._full.append(self._open.pop(owner).jobs)

    def seal(self, now: float, *, all_of_them: bool = False) -> None:
        """Close packs that have waited long enough, or all of them, however full."""
        for owner, pack in list(self._open.items()):
            if all_of_them or pack.since + self._options.pack_age_s <= now:
                self._full.append(self._open.pop(owner).jobs)

    def next(self) -> list[RemoteStore] | None:
        """The pack to put next, if any; it stays here until it is taken."""
        return self._full[0] if self._full else None

    def take(self) -> list[RemoteStore]:
        """Take the pack to put next."""
        return self._full.popleft()

    def take_all(
        self, namespace: bytes | None = None, tenant: bytes | None = None
    ) -> list[RemoteStore]:
        """Take every waiting store, or those of a namespace, or of a tenant."""
        packs = [*self._full, *(pack.jobs for pack in self._open.values())]
        taken = [
            jobs
            for jobs in packs
            if namespace in (None, jobs[0].name.namespace) and tenant in (None, jobs[0].name.tenant)
        ]
        self._full = deque(jobs for jobs in self._full if jobs not in taken)
        self._open = {name: pack for name, pack in self._open.items() if pack.jobs not in taken}
        return [job for jobs in taken for job in jobs]
