"""Run as a child process: fill an index and print the growth of resident memory a record."""

import gc
import json
import os
import sys

from forebay.bench.small import resident_bytes
from forebay.tiers.disk.index import Index, RecordPlace

_CHAIN_RECORDS = 64


def main() -> None:
    """Fill an index with as many records as the first argument says."""
    records = int(sys.argv[1])
    index = Index()
    gc.collect()
    before = resident_bytes()
    parent: bytes | None = None
    for number in range(records):
        key = os.urandom(16)
        if number % _CHAIN_RECORDS == 0:
            parent = None
        index.reserve(key, parent, bytes(32))
        index.settle(key, RecordPlace(number // 4096, number * 4096, 4096))
        parent = key
    grown = resident_bytes() - before
    print(json.dumps({"records": records, "bytes_per_record": grown / records}))  # noqa: T201


if __name__ == "__main__":
    main()
