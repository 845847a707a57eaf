"""What a pool says it holds, evicts and waits for, held against what was done to it."""

from pathlib import Path

from tests.core_harness import LENGTH, NAMESPACE, Client, CoreHarness, chain, payload

from forebay.metrics.labels import NAMESPACES_MAX
from forebay.metrics.reading import count, series_of
from forebay.pool.core.accounting.day import DayWindow
from forebay.pool.messages import ChunkRun, Clear, Describe, Resize
from forebay.record.header import ROOT
from forebay.tiers.contract import EvictionCause

HOUR_S = 3600.0
MIB = 1 << 20


def test_what_was_written_a_day_ago_is_forgotten_by_the_hour() -> None:
    window = DayWindow()
    for hour in range(48):
        window.add(10, hour * HOUR_S)
    assert window.total(47 * HOUR_S) == 250, "of an hour that has begun, all"
    assert window.total(80 * HOUR_S) == 0


def test_every_cause_of_leaving_dram_is_told_apart() -> None:
    core, client = CoreHarness(4 * MIB), Client("e")
    core.store(client, chain("a", 64))
    core.pass_time(100.0)
    core.store(client, chain("b", 8))
    left = core.number("evictions", tier="dram", cause="space")
    assert left == 8
    ages = core.number("age_at_eviction_seconds", tier="dram")
    assert ages == left
    core.pool.handle(client, Resize(2 * MIB, []))
    core.pass_time_until(lambda: core.allocated_bytes() <= 2 * MIB)
    assert core.number("evictions", cause=EvictionCause.RESIZED) > 0
    core.pool.handle(client, Clear(None))
    core.pass_time_until(lambda: not core.number("chunks", tier="dram"))
    assert core.number("evictions", cause=EvictionCause.CLEARED) > 0
    assert core.number("evictions") == 72 - core.number("chunks", tier="dram")
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def test_the_gap_at_reuse_is_the_time_that_a_chunk_rested(tmp_path: Path) -> None:
    """In DRAM since it was handed out; on a drive since it left DRAM, where it was last used."""
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    core, client = CoreHarness(4 * MIB, place, disk_bytes=16 * MIB), Client("e")
    keys = chain("a", 4)
    core.store(client, keys)
    core.pass_time(20.0)
    assert core.load(client, keys) == 4
    assert resting(core, "dram") == {30.0: 4}, "twenty seconds, by the bound of their bucket"
    core.pass_time_until(lambda: core.number("chunks", tier="disk") == 4)
    for number in range(20):
        core.store(client, chain(f"other {number}", 4))
        core.settle()
    core.pass_time(1000.0)
    assert core.load(client, keys) == 4
    assert resting(core, "disk") == {1800.0: core.number("gap_at_reuse_seconds", tier="disk")}
    assert core.number("gap_at_reuse_seconds", tier="disk") > 0
    core.settle()
    assert core.pool.violations() == []
    core.pool.close(300)


def resting(core: CoreHarness, tier: str) -> dict[float, int]:
    """The gaps that were seen: the bound of each bucket that has some, and how many."""
    ((_, found),) = series_of(core.pool.stats(), "gap_at_reuse_seconds", tier=tier)
    bounds, up_to = zip(*found["buckets"], strict=True)
    counts = [more - less for more, less in zip(up_to, (0, *up_to), strict=False)]
    return {bound: count for bound, count in zip(bounds, counts, strict=True) if count}


def test_the_largest_namespaces_are_listed_and_the_others_summed() -> None:
    core, client = CoreHarness(64 * MIB), Client("e")
    for number in range(NAMESPACES_MAX + 5):
        (key,) = chain(f"n {number}", 1)
        run = ChunkRun(bytes([number]) * 32, 0, ROOT, key, LENGTH)
        assert core.reserve_run(client, run)[0] >= 0, "a chunk counts from its slot on"
    stats = core.pool.stats()
    assert (len(stats["namespaces"]), stats["namespaces_more"]) == (NAMESPACES_MAX, 5)
    assert count(stats, "namespace_chunks", namespace="other") == 5
    assert count(stats, "namespace_bytes") == (NAMESPACES_MAX + 5) * LENGTH
    core.pool.close(300)


def test_an_engines_word_for_a_model_counts_where_it_stores_or_looks_up() -> None:
    core, liar, honest = CoreHarness(64 * MIB), Client("liar"), Client("honest")
    core.store(honest, chain("a", 1))

    def models() -> list[str]:
        return [row["model"] for row in core.pool.stats()["namespaces"]]

    core.pool.handle(liar, Describe("a lie", "vLLM", "sharing", "", NAMESPACE, 64))
    assert models() == [""]
    core.pool.handle(honest, Describe("a model", "vLLM", "sharing", "", NAMESPACE, 64))
    core.lookup(honest, chain("a", 1))
    core.lookup(liar, chain("a", 1))
    assert models() == ["a model"]
    core.pool.exited("honest")
    core.store(liar, chain("b", 1))
    assert models() == ["a lie"], "it uses the namespace, and nobody contradicts"
    core.pool.close(300)


def test_namespaces_that_left_are_not_walked_over() -> None:
    core, client = CoreHarness(4 * MIB), Client("e")
    for number in range(200):
        (key,) = chain(f"n {number}", 1)
        run = ChunkRun(number.to_bytes(32, "little"), 0, ROOT, key, LENGTH)
        (offset,) = core.reserve_run(client, run)
        core.fill(offset, payload(key))
        assert core.commit(client, [offset]) == 1
    held = core.number("chunks", tier="dram")
    assert held < NAMESPACES_MAX
    assert len(core.pool.stats()["namespaces"]) == len(core.pool._dram.chunks._namespaces) == held
    core.pool.close(300)
