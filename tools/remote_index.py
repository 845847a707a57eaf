"""Index of other hosts' records: bytes a record, and time of a lookup of 400 keys.

Usage: remote_index.py [RECORDS]   one million unless said otherwise
"""

import secrets
import sys
import time

from forebay.tiers.remote.index import published, table
from forebay.tiers.remote.index.others import OtherHosts
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.index.table import RecordTable
from forebay.tiers.remote.options import RemoteOptions

HOSTS = 16
PACK_RECORDS = 8  # 4 MiB each
LOOKUPS = 400  # the chunks of a prompt of 100,000 tokens
REPEATS = 50


def main() -> None:
    """Print one line a figure."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    keys = [secrets.token_bytes(16) for _ in range(records)]
    entry = (1).to_bytes(4, "little") + (4 << 20).to_bytes(4, "little")
    packs = [
        PublishedPack(bytes(32), at, b"".join(key + entry for key in keys[at : at + PACK_RECORDS]))
        for at in range(0, records, PACK_RECORDS)
    ]
    wire_bytes = len(published.pack(Publication(1, packs=tuple(packs))))
    share = -(-len(packs) // HOSTS)
    hosts = [(f"host{n}", packs[n * share : (n + 1) * share]) for n in range(HOSTS)]
    began = time.process_time()
    built = table.build(hosts, [])
    build_s = time.process_time() - began
    others = OtherHosts(RemoteOptions())
    empty = RecordTable(memoryview(table.build([], [])))
    others.learn(empty, RecordTable(memoryview(built)), 0.0)
    asked = [secrets.choice(keys) for _ in range(LOOKUPS)]
    absent = [secrets.token_bytes(16) for _ in range(LOOKUPS)]
    print(f"records                     {records}")
    print(f"published, bytes a record   {wire_bytes / records:.1f}")
    print(f"in memory, bytes a record   {others.size_bytes / records:.1f}")
    print(f"built by the child, CPU      {build_s:.2f} s")
    chains = {
        "of so many known keys": asked,
        "with the last unknown": [*asked[:-1], absent[0]],
        "after packs were deleted": asked,
        "after packs were not there": asked,
    }
    for name, chain in chains.items():
        if "deleted" in name:
            deleted = RecordTable(memoryview(table.build([], range(records, 2 * records))))
            others.learn(deleted, None, 0.0)
        if "not there" in name:
            for sequence in range(records, records + 10_000):
                others.forget_pack(sequence, 0.0)
        took = sorted(_timed(others, chain) for _ in range(REPEATS))
        best_us, median_us = took[0] * 1e6, took[len(took) // 2] * 1e6
        print(f"prefix of {LOOKUPS}, {name:27} {best_us:6.0f} us, median {median_us:.0f} us")


def _timed(others: OtherHosts, keys: list[bytes]) -> float:
    began = time.perf_counter()
    others.prefix(keys)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
