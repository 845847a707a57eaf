"""Hostile bytes for everything that reads bytes of others: each is data or a value, never a crash.

    python tools/fuzz.py [TARGET …] [--seconds 10] [--seed N]

Each target starts from a corpus: what Forebay itself writes, the golden files, and the inputs that
were once found, in tests/fuzz/TARGET. They are changed at random, the hashes in them made right
again half of the time, and read. An exception that is no answer, or a read that would not end, is
printed, kept in build/fuzz, and makes the exit status 1. Put what was mended into
tests/fuzz/TARGET: tests/test_fuzz.py reads it from then on.
"""

import argparse
import hashlib
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import fuzz_targets  # noqa: E402 - what is read, shared with the tests
from tests.fuzz_targets import FuzzTarget  # noqa: E402

FOUND: Final = ROOT / "build" / "fuzz"
INPUT_BYTES_MAX: Final = 1 << 16
READ_CPU_S_MAX: Final = 60.0  # of one input of 64 KiB: what takes longer has no end in sight
KEPT_MAX: Final = 20  # findings of a target in one run
_EDITS_MAX: Final = 6  # of one input
_NUMBERS: Final = (0, 1, 127, 128, 255, 4096, 65535, 1 << 30, (1 << 31) - 1, (1 << 32) - 1, 1 << 63)


class Finding(NamedTuple):
    """An input that a target could not read."""

    data: bytes
    why: str


def changed(corpus: Sequence[bytes], draw: random.Random) -> bytes:
    """One input of the corpus, changed at random."""
    data = bytearray(draw.choice(corpus))
    for _ in range(draw.randint(1, _EDITS_MAX)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << draw.randrange(8)
            case 1:
                data[at : at + draw.randint(1, 64)] = b""
            case 2:
                data[at:at] = draw.randbytes(draw.randint(1, 64))
            case 3:
                size = draw.choice((1, 2, 4, 8))
                number = draw.choice(_NUMBERS) % (1 << 8 * size)
                data[at : at + size] = number.to_bytes(size, "little")
            case 4:
                other = draw.choice(corpus)
                data[at:] = other[draw.randrange(len(other) + 1) :]
            case _:
                data[at:at] = data[at : at + draw.randint(1, 256)]
    return bytes(data[:INPUT_BYTES_MAX])


def tried(target: FuzzTarget, data: bytes) -> Finding | None:
    """Let a target read; what it could not."""
    start = time.thread_time()
    try:
        target.read(data)
    except Exception:  # noqa: BLE001 - whatever comes is what is looked for
        return Finding(data, traceback.format_exc(limit=-3))
    took_s = time.thread_time() - start
    return Finding(data, f"{took_s:.1f} s of CPU time") if took_s > READ_CPU_S_MAX else None


def fuzzed(
    target: FuzzTarget, draw: random.Random, goes_on: Callable[[int], bool]
) -> tuple[int, list[Finding]]:
    """How many inputs were read, and what was found."""
    findings: list[Finding] = []
    corpus, count = target.corpus(), 0
    while goes_on(count) and len(findings) < KEPT_MAX:
        data = corpus[count] if count < len(corpus) else changed(corpus, draw)
        if count >= len(corpus) and draw.random() < 0.5:
            data = target.rehashed(data)
        found = tried(target, data)
        count += 1
        if found is not None:
            findings.append(found)
    return count, findings


def main() -> int:
    """Print a row a target; 1 if something was found."""
    parser = argparse.ArgumentParser(description="Hostile bytes for everything that reads bytes.")
    parser.add_argument("targets", nargs="*", choices=[*fuzz_targets.TARGETS, []])
    parser.add_argument("--seconds", type=float, default=10.0, help="a target (10)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parsed = parser.parse_args()
    print(f"seed {parsed.seed}")
    failures = 0
    for name in parsed.targets or fuzz_targets.TARGETS:
        until = time.monotonic() + parsed.seconds
        draw = random.Random(f"{parsed.seed} {name}")
        target = fuzz_targets.TARGETS[name]
        count, findings = fuzzed(target, draw, lambda _, until=until: time.monotonic() < until)  # type: ignore[misc]
        failures += len(findings)
        print(f"{name:12} {count:9,} inputs, {len(findings)} findings", flush=True)
        for finding in findings:
            FOUND.mkdir(parents=True, exist_ok=True)
            path = FOUND / f"{name}-{hashlib.blake2b(finding.data, digest_size=6).hexdigest()}"
            path.write_bytes(finding.data)
            print(f"{path.relative_to(ROOT)}:\n{finding.why}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
