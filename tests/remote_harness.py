"""What tests of the remote tier share: small tiers on one directory, and its objects as files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from forebay.record.header import HEADER_BYTES, MAGIC, RecordHeader, payload_hash
from forebay.sys import memory
from forebay.sys.clock import Clock
from forebay.sys.world import World
from forebay.testing.samples import NAMESPACE, single
from forebay.tiers.contract import TierListener
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.packs import frame, frame_bytes, pack_name
from forebay.tiers.remote.process import maintenance
from forebay.tiers.remote.process.maintenance import HostWatch
from forebay.tiers.remote.store import ObjectStore, StoreFailure
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.tiers.remote.tier import RemoteTier

CAP_BYTES: Final = 3 << 20
AGE_S: Final = 86_400.0  # after which a host is dead
CLOSE_S: Final = 60.0
# No call takes ten minutes, on a busy machine neither: a child is killed only if a test wants it.
PATIENT: Final = RemoteOptions(
    pack_bytes=1 << 18,
    pack_age_s=0.0,
    pack_records_max=16,
    read_depth=2,
    call_s=600.0,
    put_s=600.0,
    maintenance_s=600.0,
    open_s=600.0,
    publish_s=0.0,
    refresh_s=3600.0,
    watched_s=0.0,
    tick_s=0.01,
)

SHARING: Final = replace(PATIENT, refresh_s=0.02)  # sees soon what another host has published


def url_of(place: Path, cap_bytes: int = CAP_BYTES) -> str:
    return f"file://{place}?cap={cap_bytes}"


def open_remote(
    place: Path,
    host: str = "a",
    *,
    options: RemoteOptions = PATIENT,
    listener: TierListener | None = None,
    world: World | None = None,
    cap_bytes: int = CAP_BYTES,
) -> RemoteTier:
    return RemoteTier.open(url_of(place, cap_bytes), host, options, world, listener)


@contextmanager
def opened_remote(
    place: Path,
    host: str = "a",
    *,
    options: RemoteOptions = PATIENT,
    listener: TierListener | None = None,
    world: World | None = None,
    cap_bytes: int = CAP_BYTES,
) -> Iterator[RemoteTier]:
    tier = open_remote(
        place, host, options=options, listener=listener, world=world, cap_bytes=cap_bytes
    )
    try:
        yield tier
    finally:
        tier.close(CLOSE_S)


def sweep(store: ObjectStore, host: str, watch: HostWatch | None = None) -> int | StoreFailure:
    """Of hosts that are dead for a day; `watch`: and were silent for a quarter of it."""
    watched_s = 0.0 if watch is None else AGE_S / 4
    return maintenance.sweep(store, host, AGE_S, watched_s, watch or HostWatch(Clock()))


def packs_in(place: Path, host: str = "*") -> list[Path]:
    return sorted(place.glob(f"packs/*/{host}/*"))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage_payloads(place: Path, host: str = "*") -> None:
    """Change a byte of every payload."""
    for path in packs_in(place, host):
        path.write_bytes(damaged(path.read_bytes()))


def damaged(pack: bytes) -> bytes:
    """The pack with a byte of every payload changed."""
    data = bytearray(pack)
    for at in range(0, len(data), HEADER_BYTES):
        if data[at : at + len(MAGIC)] == MAGIC:
            data[at + HEADER_BYTES] ^= 1
    return bytes(data)


def write_pack(place: Path, records: int) -> tuple[DirectoryStore, Path]:
    """A pack of tiny records, by the code that frames them."""
    samples = [single(f"tiny {n}", 1) for n in range(records)]
    headers = [RecordHeader(each.name, 1, payload_hash(each.payload)) for each in samples]
    frames = memory.allocate(frame_bytes(records))
    frame(headers, 1, frames)
    parts: list[memoryview] = [frames[:4096]]
    for at, sample in enumerate(samples):
        payload = memory.allocate(1)
        payload[:1] = sample.payload
        parts += [frames[(1 + at) * 4096 : (2 + at) * 4096], payload]
    parts.append(frames[(1 + records) * 4096 : frame_bytes(records)])
    store_ = DirectoryStore(str(place), "a")
    name = pack_name(NAMESPACE, "a", 1)
    assert store_.put(name, parts) is None
    return store_, place / name
