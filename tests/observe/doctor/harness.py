"""Facts for the doctor's checks: of a planted machine beneath a directory, and of real ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.clocks import SlowClock

from forebay.observe.doctor.facts import DoctorInputs, Facts, PoolFacts
from forebay.observe.doctor.finding import Observation, Severity
from forebay.observe.doctor.run import CHECKS
from forebay.settings import DiskSetting, Settings
from forebay.sys.disk import Disk

GIB = 1 << 30
MIB = 1 << 20
_WELL = {Severity.SKIPPED, Severity.OK}
_LIMIT = "{name:<26}{soft:<21}{hard:<21}units\n"


class Machine:
    """A machine's `proc`, `sys` and `dev` beneath a directory, healthy until a test plants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/self/status", "CapEff:\t0000000000000000\n")
        self.write("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\n")
        self.meminfo(MemTotal=64 << 20, MemAvailable=32 << 20)
        self.write("proc/sys/vm/overcommit_memory", "0\n")
        self.write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
        self.shared_huge_pages("[always] within_size advise never deny force")

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def meminfo(self, **kilobytes: int) -> None:
        self.write("proc/meminfo", "".join(f"{name}: {n} kB\n" for name, n in kilobytes.items()))

    def limit(self, name: str, soft: int | str, hard: int | str | None = None) -> None:
        line = _LIMIT.format(name=name, soft=soft, hard=soft if hard is None else hard)
        self.write("proc/self/limits", line)

    def shared_huge_pages(self, line: str) -> None:
        self.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", f"{line}\n")

    def mount(self, point: Path, kind: str) -> None:
        line = f"30 22 9:7 / {point} rw - {kind} none rw\n"
        with (self.root / "proc/self/mountinfo").open("a") as file:
            file.write(line)

    def facts(self, disk: Disk | None = None, **inputs: Any) -> Facts:
        return facts_of(self.root / "none", self.root, disk, **inputs)


def facts_of(place: Path, root: Path = Path("/"), disk: Disk | None = None, **inputs: Any) -> Facts:
    """Facts with a socket in `place`; drives are measured only where that is asked for."""
    settings = inputs.pop("settings", Settings())
    if not settings.socket:
        settings = replace(settings, socket=str(place / "pool.sock"))
    inputs.setdefault("measures", False)
    clock = inputs.pop("clock", SlowClock())
    return Facts(DoctorInputs(settings=settings, **inputs), disk, root, clock)


def on_disk(*places: Path, cap_bytes: int = 64 * MIB, **settings: Any) -> Settings:
    """Settings with these directories, made if they are not there."""
    for place in places:
        place.mkdir(mode=0o700, exist_ok=True)
    return Settings(disk=tuple(DiskSetting(str(place), cap_bytes) for place in places), **settings)


def with_snapshot(facts: Facts, **snapshot: Any) -> Facts:
    """The same where a pool has answered with this."""
    vars(facts)["pool"] = PoolFacts(facts.pool.address, snapshot)
    return facts


def look(name: str, facts: Facts) -> list[Observation]:
    check = next(check for check in CHECKS if check.name == name)
    seen = list(check.look(facts))
    order = list(Severity)
    for each in seen:
        assert each.sentence.endswith("."), each
        assert bool(each.advice) or each.severity in {
            Severity.SKIPPED,
            Severity.OK,
            Severity.NOTE,
        }, each
        assert order.index(each.severity) <= order.index(check.worst), "docs say another worst one"
    return seen


def finds(name: str, facts: Facts, severity: Severity, *words: str) -> None:
    """The check finds one thing so bad, in these words, and says what to do."""
    found = [each for each in look(name, facts) if each.severity not in _WELL]
    assert [each.severity for each in found] == [severity], found
    for word in words:
        assert word in f"{found[0].sentence} {found[0].advice}", (word, found[0])


def is_fine(name: str, facts: Facts) -> None:
    """The check has looked, and finds nothing."""
    seen = {each.severity for each in look(name, facts)}
    assert seen in ({Severity.OK}, _WELL), look(name, facts)


def is_skipped(name: str, facts: Facts) -> None:
    """The check says why it has not looked."""
    seen = look(name, facts)
    assert [each.severity for each in seen] == [Severity.SKIPPED], seen
