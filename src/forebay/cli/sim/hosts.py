"""`forebay sim --hosts`: what a store between hosts is worth, by routing and number of hosts."""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from forebay.cli import progress
from forebay.errors import SettingsError
from forebay.quantity import format_size
from forebay.sim.hosts import HOSTS_MAX, Cluster, ClusterResult, Routing, simulate_hosts
from forebay.sim.replay import Sizes
from forebay.sim.trace import CHUNK_TOKENS, Trace

USERS: Final = 32  # of a host, by default
SESSIONS_MAX: Final = 1_000_000  # of all hosts
_COUNTS_MAX: Final = 16  # numbers of hosts in one run


class HostsCase(NamedTuple):
    """One line of the table."""

    cluster: Cluster
    result: ClusterResult


def wanted_hosts(text: str) -> list[int]:
    """Parse the numbers of hosts to simulate: `4`, or `1,4,16`."""
    counts = [int(word) if word.isdecimal() else 0 for word in text[:200].split(",")]
    if not all(0 < count <= HOSTS_MAX for count in counts) or len(counts) > _COUNTS_MAX:
        raise SettingsError(
            f"'{text[:40]}' is no number of hosts; write one up to {HOSTS_MAX}, or several: 1,4,16."
        )
    return counts


def run(
    parsed: argparse.Namespace, trace: Trace, sizes: Sizes, store_chunks: int
) -> list[HostsCase]:
    """Simulate every number of hosts with every routing, without and with a store."""
    if trace.open_loop:
        raise SettingsError("--hosts needs a trace of sessions; this one has none.")
    if not trace.sessions:
        raise SettingsError("--hosts needs a session; --prompt-max leaves none of this trace.")
    users, counts = parsed.users or USERS, wanted_hosts(parsed.hosts)
    if max(counts) * users * parsed.sessions > SESSIONS_MAX:
        raise SettingsError(f"that is more than {SESSIONS_MAX:,} sessions; write fewer of each.")
    routings = [Routing(name) for name in parsed.routing or tuple(Routing)]
    stores = (0, store_chunks) if store_chunks else (0,)
    clusters = [
        Cluster(hosts, routing, sizes, store, users, users * parsed.sessions)
        for hosts, routing, store in product(counts, routings, stores)
    ]
    return _simulated(trace, clusters, parsed.seed)


def _simulated(trace: Trace, clusters: Sequence[Cluster], seed: int) -> list[HostsCase]:
    a_session = sum(map(len, trace.sessions)) / len(trace.sessions)
    total = max(1.0, a_session * sum(each.hosts * each.sessions for each in clusters))
    done, cases = 0, []
    with progress.shown() as show:
        for cluster in clusters:

            def count(served: int, cluster: Cluster = cluster) -> None:
                nonlocal done
                done += served
                show(f"{cluster.hosts} hosts, {_name(cluster)}", min(1.0, done / total))

            cases.append(HostsCase(cluster, simulate_hosts(trace, cluster, seed, count)))
    return cases


def as_json(cases: Sequence[HostsCase]) -> str:
    """All cases as JSON."""
    return json.dumps({"cases": [_facts(each) for each in cases]}, indent=2)


def as_table(cases: Sequence[HostsCase]) -> str:
    """All cases as a table, with one line each."""
    first = cases[0].cluster
    dram, disk = first.sizes.dram_chunks * CHUNK_TOKENS, sum(first.sizes.lower_chunks)
    load = f"{first.users} users, {first.sessions} sessions"
    titles = "".join(f"{name:>7}" for name in ("hit", "DRAM", "disk", "store"))
    titles += "".join(f"{name:>12}" for name in ("to disk", "to store", "from store"))
    lines = [
        f"each host: {load}, DRAM of {dram:,} tokens, disk of {disk * CHUNK_TOKENS:,}",
        f"hosts  {'routing':18}{titles}",
    ]
    for each in cases:
        facts, result = _facts(each), each.result
        names = ("hit_rate", "dram_hit_rate", "disk_hit_rate", "store_hit_rate")
        rates = "".join(f"{100 * facts[name]:6.1f}%" for name in names)
        moved = (result.disk_written_bytes, result.store_written_bytes, result.store_read_bytes)
        sizes = "".join(f"{format_size(size):>12}" for size in moved)
        lines.append(f"{each.cluster.hosts:5}  {_name(each.cluster):18}{rates}{sizes}")
    return "\n".join(lines)


def _name(cluster: Cluster) -> str:
    return f"{cluster.routing}, {'store' if cluster.store_chunks else 'no store'}"


def _facts(each: HostsCase) -> dict[str, Any]:
    cluster, result = each
    tokens = max(1, result.tokens)
    return {
        "hosts": cluster.hosts,
        "routing": str(cluster.routing),
        "store_tokens_a_host": cluster.store_chunks * CHUNK_TOKENS,
        "users_a_host": cluster.users,
        "sessions_a_host": cluster.sessions,
        "requests": result.requests,
        "tokens": result.tokens,
        "hit_rate": round(result.hit_rate, 4),
        "dram_hit_rate": round(result.dram_tokens / tokens, 4),
        "disk_hit_rate": round(result.disk_tokens / tokens, 4),
        "store_hit_rate": round(result.store_tokens / tokens, 4),
        "disk_written_bytes": result.disk_written_bytes,
        "store_written_bytes": result.store_written_bytes,
        "store_read_bytes": result.store_read_bytes,
    }
