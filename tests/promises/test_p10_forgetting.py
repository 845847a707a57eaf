"""P10: a tenant that was forgotten is gone, whatever happens meanwhile; the others lose nothing."""

import contextlib
import shutil
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests import crash_child
from tests.crash_child import FORGOTTEN, KEPT, owned
from tests.disk_harness import opened, until
from tests.encryption_harness import encrypted
from tests.promises.test_p04_kill9 import CrashRunner, crash_runner, survivors
from tests.remote_harness import PATIENT, opened_remote

from forebay.testing.outcomes import Outcomes
from forebay.testing.samples import Sample
from forebay.tiers.disk import Options
from forebay.tiers.remote.own import OwnPacks

__all__ = ["crash_runner"]  # the fixture
MUTATING = "open+write+zero+sync+rename+unlink"
OPTIONS = Options(region_bytes=crash_child.TINY_REGION_BYTES, read_depth=2, write_depth=1)
CAP_BYTES = 2 * crash_child.TINY_CAP_BYTES


FATES = {
    "before": (f"{MUTATING}:kill=before@{{n}}",),
    "after": (f"{MUTATING}:kill=after@{{n}}",),
    # A region is wiped as a whole: a kill may leave the end of it.
    "within": (
        "write+zero:tear=36864@{n}",
        "write+zero:kill=after@{n}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize(
    "way", ["plain", "scrubbed", pytest.param("encrypted", marks=pytest.mark.long)]
)
def test_t63_killed_at_every_step_of_forgetting(
    fate: str, way: str, swift_path: Path, crash_runner: CrashRunner
) -> None:
    """Counting up until no kill fires: after the next start all of it is there, or nothing is.

    Of encrypted records it is their key that is searched for.
    """
    finished_at_start, is_encrypted = 0, way == "encrypted"
    is_left = has_key if is_encrypted else is_on_medium
    options = encrypted(OPTIONS) if is_encrypted else OPTIONS
    for n in count(1):
        place, notes = swift_path / f"{n}", swift_path / f"{n}.txt"
        faults = tuple(fault.format(n=n) for fault in FATES[fate])
        job = crash_child.Job(str(place), str(notes), "forgetting", faults)
        job = replace(job, seed=int(way == "scrubbed"), is_encrypted=is_encrypted)
        ended = crash_runner.run(job)
        assert ended in {0, -signal.SIGKILL}
        said = crash_child.acknowledged(notes)
        had_bytes = is_left(place)
        with opened(place, options=options, cap_bytes=CAP_BYTES) as tier:
            theirs = survivors(tier, [owned(FORGOTTEN, number) for number in range(6)])
            others = survivors(tier, [owned(KEPT, number) for number in range(6)])
            is_remembered = FORGOTTEN in tier.forgotten()
            assert is_remembered or not said, "what was said to be remembered is"
            assert len(theirs) == (0 if is_remembered else 6), "all of it, or nothing"
            assert len(others) == 6, "nobody else loses anything"
            assert is_left(place) != is_remembered, "no plaintext of it in any file, nor its key"
            assert not (is_encrypted and is_on_medium(place))
            assert FORGOTTEN not in tier.held_by_tenants() or not is_remembered
            finished_at_start += is_remembered and had_bytes
        assert not (2 in said and had_bytes), "complete when it says so"
        shutil.rmtree(place)
        if ended == 0:
            break
    print(f"{n - 1} kill points; {finished_at_start} times the next start had to finish")
    least = 0 if is_encrypted else 3  # its key goes in one write, and first
    assert finished_at_start >= least, "kills fell between remembering and the last removal"


def test_t63_a_store_alone_killed_at_every_step_of_forgetting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store has at each step is what a kill there leaves: all is there, or none comes."""
    place, images = tmp_path / "store", tmp_path / "images"
    place.mkdir(mode=0o700)
    theirs = [owned(FORGOTTEN, number) for number in range(5)]
    others = [owned(KEPT, number) for number in range(3)]
    options = replace(PATIENT, pack_records_max=1)

    def copy(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # the index is published meanwhile
            shutil.copy2(source, target)

    def image() -> None:
        to = images / str(len([*images.iterdir()]))
        shutil.copytree(place, to, copy_function=copy)

    def deleted(own: OwnPacks, name: str) -> None:
        is_deleted(own, name)
        image()

    is_deleted = OwnPacks.deleted
    images.mkdir()
    with opened_remote(place, options=options) as tier:
        stored = Outcomes(tier)
        for sample in [*theirs, *others]:
            stored.store(sample)
        stored.wait()
        until(lambda: tier.upkeep.is_idle)
        image()
        monkeypatch.setattr(OwnPacks, "deleted", deleted)
        assert not tier.remember_forgotten(FORGOTTEN)
        image()
        assert not tier.forget(FORGOTTEN, scrub=False).failure
        image()
    monkeypatch.undo()
    had_bytes = []
    for each in sorted(images.iterdir(), key=lambda path: int(path.name)):
        had_bytes.append(is_in_store(each, theirs))
        with opened_remote(each, options=options) as tier:
            is_remembered = FORGOTTEN in tier.forgotten()
            tier.delete_forgotten(tier.forgotten())  # as a pool that begins does
            assert is_remembered == (each.name != "0")
            # An index that was half published knows not all packs: the others are read by and by.
            until(lambda tier=tier: len(survivors(tier, others)) == 3)  # type: ignore[misc]
            assert len(survivors(tier, theirs)) == (0 if is_remembered else 5)
            until(lambda place=each, gone=is_remembered: is_in_store(place, theirs) != gone)  # type: ignore[misc]
    assert had_bytes == [True] * 6 + [False] * 2, "the last but one deletion leaves one pack"


def is_in_store(place: Path, samples: list[Sample]) -> bool:
    """Whether a piece of these is in any object."""
    found = []
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            found.append(path.read_bytes())
    return any(sample.payload[:64] in content for sample in samples for content in found)


def has_key(place: Path) -> bool:
    """Whether the tenant's key is in any table of keys, whole or not."""
    tables = [path.read_bytes() for path in place.glob("keys*")]
    return any(FORGOTTEN in table for table in tables)


def is_on_medium(place: Path) -> bool:
    """Whether any piece of what was the tenant's is in any file."""
    files = [path.read_bytes() for path in place.iterdir()]
    payloads = [owned(FORGOTTEN, number).payload for number in range(6)]
    pieces = [each[at : at + 64] for each in payloads for at in range(0, len(each) - 64, 4000)]
    return any(piece in content for piece in pieces for content in files)
