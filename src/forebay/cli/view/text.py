"""`forebay stats` as text: every section whole, one beneath the other, no colour."""

from typing import Final

from forebay.cli.view import sections
from forebay.cli.view.figures import Figures, Snapshot, figures
from forebay.cli.view.lines import UNICODE, Line, line, plain
from forebay.cli.view.outlook import outlook
from forebay.cli.view.sections import ViewSection
from forebay.cli.view.units import count, duration, rate, share, size

_INDENT: Final = "  "
_WIDEST: Final = 10_000  # letters: lines are not cut, since they may be searched


def stats_text(snapshot: Snapshot, before: Snapshot | None) -> str:
    """What a pool holds, what it did since an older snapshot or since it began, and what ends."""
    found = figures(snapshot, before)
    parts = [
        ViewSection("Tiers", _tiers(found), has_head=True),
        *([sections.volumes(found)] if any(tier.volumes for tier in found.tiers) else []),
        *([sections.stores(found)] if any(tier.stores for tier in found.tiers) else []),
        ViewSection("Hits", sections.hits(found)),
        ViewSection("Saved", [sections.saved(found)]),
        ViewSection("Throughput", [sections.throughput(found)]),
        sections.misses(found),
        sections.stores_left_out(found),
        sections.evictions(found),
        ViewSection("Lifetimes", sections.lifetimes(found) or [line("nothing left or came back")]),
        sections.errors(found),
        sections.engines(found, _WIDEST, UNICODE),
        sections.namespaces(found, "size", _WIDEST, UNICODE),
        *([sections.tenants(found, _WIDEST, UNICODE)] if len(found.tenants) > 1 else []),
        sections.runs_out(outlook(snapshot, before)),
    ]
    since = f"of the last {duration(found.seconds)}" if before else "since the pool began"
    lines = [plain(sections.pool_line(snapshot)), f"shares and rates {since}"]
    for part in parts:
        lines += ["", part.title, *(_INDENT + plain(row) for row in part.rows if plain(row))]
    return "\n".join(lines)


def _tiers(found: Figures) -> list[Line]:
    head = ("tier", "used>", "of>", "full>", "chunks>", "loads>", "stores>", "queued>")
    rows = [
        (
            tier.name,
            size(tier.used_bytes),
            size(tier.cap_bytes),
            share(tier.used_bytes, tier.cap_bytes),
            count(tier.chunks),
            rate(tier.load_bytes_s),
            rate(tier.store_bytes_s),
            count(tier.queued),
        )
        for tier in found.tiers
    ]
    return [*sections.table(head, rows), *sections.memory_nodes(found)]
