"""A pool gives up what it does not need: new privileges, core dumps, writing elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.encryption_harness import NAMES_WORD, OLD_WORD
from tests.pool_process import HANG_S, running_pool

from forebay.sys.protection import confinement

CONFINED = """
import sys
from pathlib import Path
from forebay.sys.protection.confinement import drop_privileges, write_only_in
drop_privileges()
print(write_only_in(sys.argv[1:2]))
for place in sys.argv[1:]:
    try:
        (Path(place) / "file").write_text("x")
        print("written")
    except PermissionError:
        print("refused")
"""


def confined(*places: Path) -> list[str]:
    """What a process says that may write in the first place, and tries all."""
    command = [sys.executable, "-c", CONFINED, *map(str, places)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    return ended.stdout.split()


def has_landlock(place: Path) -> bool:
    return confined(place)[0] == "True"


def test_what_is_not_named_cannot_be_written(tmp_path: Path) -> None:
    if not has_landlock(tmp_path):
        pytest.skip("this kernel has no Landlock")
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    assert confined(inside, outside) == ["True", "written", "refused"]


def test_the_nearest_directory_that_there_is(tmp_path: Path) -> None:
    assert confinement.existing(str(tmp_path)) == str(tmp_path)
    assert confinement.existing(str(tmp_path / "a" / "b")) == str(tmp_path)
    cannot_be_looked_at = tmp_path / ("a" * 300)
    assert confinement.existing(str(cannot_be_looked_at / "b")) == str(tmp_path)


def test_what_is_above_a_mount_and_never_all_there_is(tmp_path: Path) -> None:
    mounts = [
        Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    deep = next(each for each in mounts if len(each.parts) > 2 and each.is_dir())
    assert confinement.above_mount(str(deep)) == str(deep.parent)
    assert confinement.above_mount(str(tmp_path / "a" / "b")) == str(tmp_path.parent)
    assert confinement.above_mount("/proc/1") == "/proc/1", "what is mounted right below /"
    assert confinement.above_mount("/proc/none") == "/proc"
    assert confinement.above_mount("/none/forebay") == confinement.above_mount("/") == "/"
    linked = tmp_path / "linked"
    linked.symlink_to("/proc")
    assert confinement.above_mount(str(linked / "1")) == "/proc/1"


def test_a_pool_gives_up_what_it_does_not_need(tmp_path: Path, short_path: Path) -> None:
    """Its keys come from a command here, which the pool starts, and which is bound as it is."""
    keys, outside, script = (tmp_path / name for name in ("keys", "outside", "script"))
    keys.write_text(f"{NAMES_WORD} {OLD_WORD}")
    script.write_text(f"#!/bin/sh\ntouch {outside}\ncat {keys}\n")
    script.chmod(0o700)
    with running_pool(short_path, "--encryption", f"command:{script}") as pool:
        process = Path(f"/proc/{pool.pid}")
        assert re.search(r"^NoNewPrivs:\s+1$", (process / "status").read_text(), re.MULTILINE)
        limits = (process / "limits").read_text()
        assert re.search(r"^Max core file size\s+1\s+1\s", limits, re.MULTILINE)
        slabs = (process / "smaps").read_text().split("memfd:forebay-slab")[1:]
        flags = [re.search(r"^VmFlags: (.*)$", slab, re.MULTILINE) for slab in slabs]
        assert flags
        assert all(found and "dd" in found[1].split() for found in flags), "not in a core dump"
        assert outside.exists() != has_landlock(tmp_path)
