"""docs/promises.md: what is promised, and the tests that hold it, found by their names.

A test of T7 is called `test_t7_…`, one of T15 and T16 `test_t15_t16_…`; nothing else lists it. What
is not built or not tested yet is said here.
"""

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "promises.md"
SHIPPED: Final = ROOT / "src" / "forebay" / "testing" / "conformance"  # inherited by tiers' tests

# number: what goes wrong → what happens, what of it is not built or not tested yet
PROMISES: Final = {
    1: ("`kill -9` at every write point → reopened: exact or absent, nothing left over", ""),
    2: ("`kill -9` at random under load → the same", ""),
    3: ("power loss: unsynced writes lost, kept, torn → exact or a miss", ""),
    4: ("torn write in header, payload or table → a miss", ""),
    5: ("crash during eviction, trimming, refilling, key rotation → opens, within its cap", ""),
    6: ("a flipped bit, anywhere → a miss once, then absent; a store repairs", ""),
    7: ("misdirected write or read: a sound record of another name → a miss", ""),
    8: ("stale bytes: an older copy of a region → never another key's", ""),
    9: ("keys that collide in the index → a miss, no wrong bytes", ""),
    10: (
        "another model, adapter, image, tenant; the same tokens → a miss",
        "",
    ),
    11: ("another parallel size, rank, block size, layout → a miss", ""),
    12: ("another format version or codec → a miss; its files are never deleted", ""),
    13: ("an engine upgrade changes hash or layout → a miss", ""),
    14: ("races of GPU copies → exact", ""),
    15: ("no space, at each write → stores dropped, reads go on, recovers", ""),
    16: ("I/O errors of every call → misses; a failing drive is switched off, probed", ""),
    17: ("short I/O, interruptions, no descriptors or memory → again, or a miss", ""),
    18: ("read-only, deleted or replaced directory → no exception", ""),
    19: ("a region is missing or cut → a miss, the index is repaired", ""),
    20: ("a table of contents is lost → rebuilt by walking", ""),
    21: ("two writers of one key → one exact winner", ""),
    22: ("two owners of one directory → the second is refused with a sentence", ""),
    23: ("loads beside stores and evictions → exact or a miss", ""),
    24: (
        "slow and hanging drives → a miss at the deadline, no call and no step of vLLM waits",
        "",
    ),
    25: ("a dead remote store → a miss within its deadline", ""),
    26: (
        "a remote store that drips, or never ends → likewise, in bounded memory",
        "",
    ),
    27: ("a remote store that answers with wrong bytes → a miss", ""),
    28: ("tiers stalled and released in any order → no deadlock, no leak", ""),
    29: ("error budget exceeded → serving goes on without a cache", ""),
    30: ("requests aborted in every state → pins and bytes return", ""),
    31: ("quota, as `du` sees it at every instant → holds", ""),
    32: ("write budget of an SSD → holds", ""),
    33: ("everything is pinned → a store is refused at once", ""),
    34: ("started with a lowered cap → trimmed before serving", ""),
    35: ("tenants at every tier and path → share nothing", ""),
    36: ("salts of any content → names are keyed hashes; empty is none", ""),
    37: ("one tenant floods → another keeps its floor; caps hold at every sample", ""),
    38: ("probing for existence without a key, or as another tenant → refused, or nothing", ""),
    39: ("hostile bytes in every decoder → data, never a crash", ""),
    40: ("length bombs → refused before allocation", ""),
    41: ("sinks that turn bytes into code → none in the wheel", ""),
    42: ("default bind and authentication → loopback or Unix sockets only; public: a token", ""),
    43: ("path traversal → no name reaches the file system, no link is followed", ""),
    44: ("permissions → files 0600; unsafe directories refused with a sentence", ""),
    45: (
        "a stolen drive, a wrong or rotated key → nothing readable, a miss",
        "",
    ),
    46: ("secrets in logs and metrics, ours and vLLM's → none", ""),
    47: ("clocks jump or stop → deadlines follow the monotonic clock", ""),
    48: ("fork, spawn, signals, in engines too → refused, or works", ""),
    49: ("memory pressure, a full NUMA node → a smaller pool or a sentence", ""),
    50: ("end to end: outputs with a cache equal outputs without", ""),
    51: (
        "a rank dies in a store or a load, or is late → its chunk exact on all ranks, or a miss",
        "",
    ),
    52: (
        "window blocks freed and granted again under a store → the store is dropped",
        "",
    ),
    53: (
        "adapters of one name, images named by counters → never a hit",
        "an adapter's files changed after its loading and before its first request: not seen",
    ),
    54: (
        "sleep, wake, reset while offers are unanswered → nothing copied of remapped pages",
        "",
    ),
    55: ("a pool that is not ours → refused before any KV is sent or believed", ""),
    56: ("an exception in a message or a job → counted; the pool lives and answers others", ""),
    57: ("an engine that is stopped, greedy, or asks too much → others keep their shares", ""),
    58: ("a write into a slot after its commit → never served as truth", ""),
    59: ("a client that touches all it can map → memory never above the cap", ""),
    60: ("stubs, absurd names, sparse giants, links in the directory → opens, accounts", ""),
    61: (
        "a remote store that hangs, drips, lies → a miss within its deadline",
        "",
    ),
    62: (
        "hosts killed, partitioned, with wrong clocks, of one name → exact or a miss, caps hold",
        "",
    ),
    63: (
        "a tenant is forgotten, killed at every step → this host finds nothing of it",
        "",
    ),
    64: (
        "gateway: engine killed or swapped, client gone, huge body → no wrong answer",
        "",
    ),
    65: (
        "the metrics port: strangers, slow scrapers → refused, bounded",
        "",
    ),
}

_HEAD: Final = """\
# Promises and their tests

<!-- Generated by `make docs` from tools/promises.py and the names of the tests. -->

Each row is a fault and what Forebay promises then. A *miss* is a recomputation: no exception, no
wrong bytes. The last column says what is not built or not tested yet; where it is empty, nothing is
known to be missing.

| | fault → promise | tests | not yet |
|---|---|---|---|
"""


def page() -> str:
    """docs/promises.md, whole."""
    tests = tests_by_number()
    rows = []
    for number, (promise, still_open) in PROMISES.items():
        listed = "<br>".join(f"`{name}`" for name in tests.get(number, []))
        rows.append(f"| T{number} | {promise} | {listed} | {still_open} |\n")
    return _HEAD + "".join(rows)


def tests_by_number() -> dict[int, list[str]]:
    """Tests named after a T, each as `file::function` below tests/ or forebay/testing/."""
    found: dict[int, list[str]] = {}
    for path in [*sorted((ROOT / "tests").rglob("test_*.py")), *sorted(SHIPPED.glob("*.py"))]:
        shipped = path.is_relative_to(SHIPPED)
        file = path.relative_to(SHIPPED.parent if shipped else ROOT / "tests")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            prefix = re.match(r"test_((?:t\d+_)+)", node.name)
            for number in re.findall(r"t(\d+)_", prefix[1]) if prefix else ():
                found.setdefault(int(number), []).append(f"{file}::{node.name}")
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
