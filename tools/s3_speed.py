"""Put and get of the S3 store against obstore alone, on a real server here: ratios, CPU s/GB.

Usage: s3_speed.py   (make bench-stores). Rounds alternate, so that both see the same machine; the
best of each side counts, since others may be at work there. CPU seconds are this process's own, the
server's are not among them. Alone, a get ends with a copy into the buffer that is to have it.
"""

import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import obstore  # noqa: E402
from tests import seaweed  # noqa: E402

from forebay.tiers.remote.stores.s3 import S3Store  # noqa: E402
from forebay.urls import parse_url  # noqa: E402

PACK_BYTES = 32 << 20
PARTS = 32
PACKS = 2
PUT_ROUNDS = 5
GET_ROUNDS = 25  # much quicker than puts
BAR = 0.8


def main() -> int:
    """Print a row an operation; 1 if one is below the bar."""
    os.environ.update(AWS_ACCESS_KEY_ID=seaweed.KEY, AWS_SECRET_ACCESS_KEY=seaweed.SECRET)
    with tempfile.TemporaryDirectory() as place, seaweed.serving_s3(Path(place)) as server:
        return measure(server)


def measure(server: seaweed.S3Server) -> int:
    """Both operations, each side in turn."""
    options = f"cap=1GiB&endpoint={server.url}&region=us-east-1&timeout=600"
    ours = S3Store(parse_url(f"s3://{seaweed.BUCKET}/speed?{options}"))
    alone = seaweed.client(server, "speed")
    source = memoryview(bytearray(secrets.token_bytes(PACK_BYTES)))
    target = memoryview(bytearray(PACK_BYTES))
    size = PACK_BYTES // PARTS
    sources = [source[at : at + size] for at in range(0, PACK_BYTES, size)]
    targets = [target[at : at + size] for at in range(0, PACK_BYTES, size)]

    def put_ours(name: str) -> None:
        assert ours.put(name, sources) is None

    def put_alone(name: str) -> None:
        obstore.put(alone, name, source, use_multipart=False)

    def get_ours(name: str) -> None:
        assert ours.get(name, 0, targets) == PACK_BYTES

    def get_alone(name: str) -> None:
        target[:] = memoryview(obstore.get_range(alone, name, start=0, end=PACK_BYTES))

    rows = {
        "put": compared(put_ours, put_alone, PUT_ROUNDS),
        "get": compared(get_ours, get_alone, GET_ROUNDS),
    }
    assert target == source
    ours.close()
    print(f"packs of {PACK_BYTES >> 20} MiB over plain HTTP on loopback, load {os.getloadavg()[0]}")
    for name, (speed, speed_alone, cpu, cpu_alone) in rows.items():
        print(
            f"{name}  {speed:6.0f} MB/s, alone {speed_alone:6.0f}: {speed / speed_alone:.2f}"
            f" (bar {BAR}); CPU s/GB {cpu:.2f}, alone {cpu_alone:.2f}"
        )
    return int(any(speed < BAR * speed_alone for speed, speed_alone, _, _ in rows.values()))


def compared(
    ours: Callable[[str], None], alone: Callable[[str], None], rounds: int
) -> tuple[float, float, float, float]:
    """MB/s of both, CPU seconds per GB of both."""
    sides = {"ours": ours, "alone": alone}
    walls: dict[str, list[float]] = {side: [] for side in sides}
    cpus: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side, call in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for number in range(PACKS):
                call(f"packs/00/{side}/{number}")
            if turn:  # the first one connects
                walls[side].append(time.perf_counter() - wall)
                cpus[side].append(time.process_time() - cpu)
    total = PACKS * PACK_BYTES
    speeds = [total / 1e6 / min(walls[side]) for side in sides]
    costs = [statistics.median(cpus[side]) / (total / 1e9) for side in sides]
    return speeds[0], speeds[1], costs[0], costs[1]


if __name__ == "__main__":
    sys.exit(main())
