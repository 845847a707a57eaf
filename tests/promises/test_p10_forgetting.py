"""P10: a tenant that was forgotten is gone, whatever happens meanwhile; the others lose nothing."""

import shutil
import signal
from itertools import count
from pathlib import Path

import pytest
from tests import crash_child
from tests.crash_child import FORGOTTEN, KEPT, owned
from tests.disk_harness import opened
from tests.promises.test_p04_kill9 import Executioner, executioner, survivors

from forebay.tiers.disk import Options

__all__ = ["executioner"]  # the fixture
MUTATING = "open+write+zero+sync+rename+unlink"
OPTIONS = Options(region_bytes=crash_child.TINY_REGION_BYTES, read_depth=2, write_depth=1)
CAP_BYTES = 2 * crash_child.TINY_CAP_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("scrub", [False, True])
def test_t63_killed_at_every_step_of_forgetting(
    when: str, scrub: bool, swift_path: Path, executioner: Executioner
) -> None:
    """Counting up until no kill fires: after the next start all of it is there, or nothing is."""
    finished_at_start = 0
    for n in count(1):
        place, notes = swift_path / f"{n}", swift_path / f"{n}.txt"
        fault = f"{MUTATING}:kill={when}@{n}"
        job = crash_child.Job(str(place), str(notes), "forgetting", (fault,), seed=int(scrub))
        ended = executioner.run(job)
        assert ended in {0, -signal.SIGKILL}
        said = crash_child.acknowledged(notes)
        had_bytes = is_on_medium(place)
        with opened(place, options=OPTIONS, cap_bytes=CAP_BYTES) as tier:
            theirs = survivors(tier, [owned(FORGOTTEN, number) for number in range(6)])
            others = survivors(tier, [owned(KEPT, number) for number in range(6)])
            is_remembered = FORGOTTEN in tier.forgotten()
            assert is_remembered or not said, "what was said to be remembered is"
            assert len(theirs) == (0 if is_remembered else 6), "all of it, or nothing"
            assert len(others) == 6, "nobody else loses anything"
            assert is_on_medium(place) != is_remembered, "no plaintext of it in any file"
            assert FORGOTTEN not in tier.held_by_tenants() or not is_remembered
            finished_at_start += is_remembered and had_bytes
        assert not (2 in said and had_bytes), "complete when it says so"
        shutil.rmtree(place)
        if ended == 0:
            break
    print(f"{n - 1} kill points; {finished_at_start} times the next start had to finish")
    assert finished_at_start >= 3, "kills fell between remembering and the last removal"


def is_on_medium(place: Path) -> bool:
    """Whether any piece of what was the tenant's is in any file."""
    files = [path.read_bytes() for path in place.iterdir()]
    payloads = [owned(FORGOTTEN, number).payload for number in range(6)]
    pieces = [each[at : at + 64] for each in payloads for at in range(0, len(each) - 64, 4000)]
    return any(piece in content for piece in pieces for content in files)
