"""What `forebay stats` and `forebay top` both show: a heading each, and lines beneath it."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from forebay.cli.view.figures import (
    ABSENT,
    COMPUTED,
    ENGINE,
    Figures,
    NamespaceFigures,
    Snapshot,
    StoreFigures,
)
from forebay.cli.view.lines import (
    BAD,
    GOOD,
    SOFT,
    TITLE,
    UNICODE,
    Cell,
    Glyphs,
    Line,
    TextPiece,
    grid,
    line,
)
from forebay.cli.view.outlook import RunOut
from forebay.cli.view.units import count, duration, frequency, rate, share, size
from forebay.metrics.labels import DRAM, REQUEST_KINDS

_SHARING: Final = "sharing"
_SHARING_STYLES: Final = {_SHARING: GOOD, "unknown": SOFT, "": SOFT}
_WIDEST: Final = 10_000  # letters: no limit
_NAMELESS: Final = "(no name)"  # for a model whose engine did not name it


class ViewSection(NamedTuple):
    """A heading and the rows below it; the first rows matter most."""

    title: str
    rows: list[Line]
    has_head: bool = False  # the first row names columns


# How namespaces are ordered: by bytes in all tiers, by chunks, or by the model's name.
ORDERS: Final[dict[str, Callable[[NamespaceFigures], tuple[object, ...]]]] = {
    "size": lambda each: (-each.total_bytes, each.namespace),
    "chunks": lambda each: (-sum(each.chunks.values()), each.namespace),
    "model": lambda each: (each.model.lower(), each.namespace),
}


def pool_line(snapshot: Snapshot) -> Line:
    """Which pool this is."""
    up = duration(snapshot["uptime_s"])
    return line(
        TextPiece("pool", TITLE),
        " at ",
        TextPiece.of(snapshot["socket"]),
        TextPiece(f"  up {up}, process {snapshot['pid']}, forebay {snapshot['forebay']}", SOFT),
    )


def hits(found: Figures) -> list[Line]:
    """Where prompts' tokens and chunks came from, in shares."""
    tokens, chunks = sum(found.tokens.values()), sum(found.chunks.values())
    rows = []
    if tokens:
        tiers = [name for name in found.tokens if name not in {ENGINE, COMPUTED}]
        parts = [f"{name} {share(found.tokens[name], tokens)}" for name in tiers]
        parts.append(f"the engines' own cache {share(found.tokens.get(ENGINE, 0.0), tokens)}")
        parts.append(f"computed {share(found.tokens.get(COMPUTED, 0.0), tokens)}")
        rows.append(line(f"{count(tokens)} prompt tokens: {', '.join(parts)}"))
    if chunks:
        tiers = [name for name in found.chunks if name != ABSENT]
        parts = [f"{name} {share(found.chunks[name], chunks)}" for name in tiers]
        parts.append(f"absent {share(found.chunks.get(ABSENT, 0.0), chunks)}")
        rows.append(line(f"{count(chunks)} chunks looked up: {', '.join(parts)}"))
    return rows or [line("nothing was looked up")]


def misses(found: Figures) -> ViewSection:
    """Why requests loaded nothing, or less than possible."""
    return ViewSection("Misses by reason", _reasons(found.misses, found.seconds))


def stores_left_out(found: Figures) -> ViewSection:
    """Why chunks that engines offered are not stored."""
    return ViewSection("Stores left out by reason", _reasons(found.stores_left_out, found.seconds))


def evictions(found: Figures) -> ViewSection:
    """What left the tiers."""
    return ViewSection("Evictions by cause", _reasons(found.evictions, found.seconds))


def errors(found: Figures) -> ViewSection:
    """What went wrong."""
    return ViewSection("Errors by kind", _reasons(found.errors, found.seconds))


def runs_out(found: Sequence[RunOut]) -> ViewSection:
    """What ends first."""
    rows = [line(each.sentence) for each in found]
    return ViewSection("Runs out first", rows or [line(TextPiece("nothing in sight", SOFT))])


def memory_nodes(found: Figures) -> list[Line]:
    """On which NUMA nodes DRAM lies, if the pool knows."""
    sizes = [f"{size(n)} on {node}" for tier in found.tiers for node, n in tier.node_bytes]
    return [line(f"memory of the pool by NUMA node: {', '.join(sizes)}")] if sizes else []


def volumes(found: Figures) -> ViewSection:
    """Each directory, and whether it is in use."""
    rows = []
    for tier in found.tiers:
        for each in tier.volumes:
            state = TextPiece("on", GOOD) if each.is_on else TextPiece("off", BAD)
            failed = TextPiece(count(each.errors), BAD if each.errors else "")
            rows.append((TextPiece.of(each.path), tier.name, state, failed))
    head = ("directory", "tier", "state", "errors>")
    return ViewSection("Directories", table(head, rows), has_head=True)


def stores(found: Figures) -> ViewSection:
    """Each store that others run: requests, what is left of them today, and dollars."""
    rows: list[Sequence[Cell]] = [
        [
            TextPiece.of(each.path),
            *(frequency(each.requests.get(kind, 0.0), found.seconds) for kind in REQUEST_KINDS),
            count(each.today),
            count(each.budget) if each.budget else "no limit",
            TextPiece(f"${each.dollars_a_day:,.2f}", BAD if _is_spent(each) else ""),
        ]
        for tier in found.tiers
        for each in tier.stores
    ]
    head = ("store", *(f"{kind}s>" for kind in REQUEST_KINDS), "today>", "of>", "a day>")
    return ViewSection("Requests to stores", table(head, rows), has_head=True)


def _is_spent(store: StoreFigures) -> bool:
    return bool(store.budget) and store.today >= store.budget


def engines(found: Figures, width: int, glyphs: Glyphs) -> ViewSection:
    """Who has joined, and whether it shares."""
    rows = [
        (
            TextPiece.of(each.model or _NAMELESS),
            TextPiece.of(each.engine or "?"),
            TextPiece.of(each.sharing, _SHARING_STYLES.get(each.sharing, BAD)),
            count(each.processes),
            duration(each.joined_s),
            TextPiece.of(each.id),
            TextPiece.of("" if each.sharing == _SHARING else each.why),
        )
        for each in found.engines
    ]
    head = ("model", "engine", "sharing", "processes>", "joined for>", "id", "")
    shown = [*table(head, rows, width, glyphs), *_more(found.engines_more)]
    return ViewSection("Engines", shown, has_head=True)


def namespaces(found: Figures, order: str, width: int, glyphs: Glyphs) -> ViewSection:
    """What each configuration of a model holds, as `forebay clear` takes it."""
    tiers = [tier.name for tier in found.tiers]
    rows: list[Sequence[Cell]] = [
        [
            TextPiece.of(each.model or _NAMELESS),
            TextPiece.of(each.namespace),
            *(size(each.bytes.get(tier, 0)) for tier in tiers),
            count(sum(each.chunks.values())),
        ]
        for each in sorted(found.namespaces, key=ORDERS[order])
    ]
    head = ("model", "namespace", *(f"{tier}>" for tier in tiers), "chunks>")
    shown = [*table(head, rows, width, glyphs), *_more(found.namespaces_more)]
    return ViewSection(f"Namespaces by {order}", shown, has_head=True)


def _more(others: int) -> list[Line]:
    """A line on how many more there are than the pool lists."""
    return [line(TextPiece(f"and {count(others)} more", SOFT))] if others else []


def tenants(found: Figures, width: int, glyphs: Glyphs) -> ViewSection:
    """What each tenant has of each tier, is guaranteed, and may have."""
    rows: list[Sequence[Cell]] = [
        [
            TextPiece.of(each.tenant if tier == DRAM else ""),
            tier,
            size(each.used_bytes[tier]),
            size(each.floor_bytes[tier]),
            _cap(each.cap_bytes[tier]),
            "" if tier != DRAM or each.hit_rate is None else f"{each.hit_rate:.0%}",
        ]
        for each in found.tenants
        for tier in each.used_bytes
    ]
    head = ("tenant", "tier", "has>", "floor>", "cap>", "found>")
    return ViewSection("Tenants", table(head, rows, width, glyphs), has_head=True)


def _cap(cap_bytes: int | None) -> str:
    return "all" if cap_bytes is None else size(cap_bytes)


def saved(found: Figures) -> Line:
    """What did not have to be computed again."""
    saved_tokens = f"{count(found.saved_tokens)} tokens were loaded and not recomputed"
    if not found.saved_gpu_s:
        return line(saved_tokens)
    return line(f"{saved_tokens}: about {duration(found.saved_gpu_s)} of GPU time, an estimate")


def throughput(found: Figures) -> Line:
    """The rates of lookups, loads and stores."""
    return line(
        f"{frequency(found.lookups, found.seconds)} lookups, {rate(found.load_bytes_s)} to engines,"
        f" {rate(found.store_bytes_s)} from engines"
    )


def lifetimes(found: Figures) -> list[Line]:
    """The age of chunks that left a tier, and the time since the last use of those used again."""
    rows = []
    for tier in found.tiers:
        if tier.age_s is not None:
            age = f"of those that left {tier.name}, half had been there at most"
            rows.append(line(f"{age} {duration(tier.age_s)}"))
        if tier.gap_s is not None:
            gap = f"of those used again from {tier.name}, half had rested at most"
            rows.append(line(f"{gap} {duration(tier.gap_s)}"))
    return rows


def _reasons(counted: Sequence[tuple[str, float]], seconds: float) -> list[Line]:
    whole = sum(number for _, number in counted)
    rows = [
        (TextPiece.of(name), count(number), share(number, whole), frequency(number, seconds))
        for name, number in counted
    ]
    found = table(("", ">", ">", ">"), rows)[1:]
    return found or [line(TextPiece("none", SOFT))]


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int = _WIDEST,
    glyphs: Glyphs = UNICODE,
) -> list[Line]:
    """A grid, or a line that says that there is nothing."""
    found = grid(head, rows, width, glyphs)
    return found if rows else [found[0][:0], line(TextPiece("none", SOFT))]
