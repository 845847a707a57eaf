"""Take each verification away in turn; some test must notice.

A line that verifies carries a `# verify: …` comment. In a copy of the tree it is neutralised (a
condition becomes False, an assigned value and a comprehension's condition True, a call nothing)
and the fast tests of its layer or package are run: first those that were seen to run the line, the
quickest before all others. A test that fails has noticed if it passes on the tree as it is. A
mutant that every test accepts, or that only makes tests hang, is a verification that no test holds:
exit status 1.

Two mutants are tried at once (`--at-once`). What was found is kept in build/mutate.json: a run that
was ended goes on where it was, and a later one tries only what has changed since, of a
verification's file and of the file of the test that noticed. `--anew` forgets it.
"""

import argparse
import hashlib
import itertools
import json
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.mutant_tests import REAL, Python, Tests, Unclear  # noqa: E402
from tools.mutations import Verification, bad_marks, neutralised, verifications  # noqa: E402
from tools.tests_that_ran import DIRECTORY, TestsThatRan  # noqa: E402

KEPT: Final = ROOT / "build" / "mutate.json"
TESTS: Final = {  # by layer, the quickest to notice first; other packages have their own directory
    "record": ["tests/record", "tests/tiers", "tests/promises"],
    "tiers": ["tests/tiers", "tests/promises"],
    "tenants.py": ["tests/test_tenants.py"],
    "sys": ["tests/sys", "tests/cli/test_confinement.py"],
}
NUMPY: Final = ("codec", "copies", "digests", "vllm")  # of engines/: their tests need numpy
NOT_TRACED: Final = tuple(f"tests/{place}/" for place in REAL)  # pytest runs what is named
FIRST: Final = 8  # of those tests: mostly enough, and read from a few files
SEEN_MAX: Final = 200  # tests that ran a line and are tried before all of its directories
BAD_MAX: Final = 5  # of one mutant: tests that were flaky, or took too long


class Verdict(NamedTuple):
    """What becomes of one mutant."""

    noticed: str | None  # the test that fails without this verification
    why_not: str = "SURVIVED"


class Kept:
    """What earlier runs have found, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards what is kept, and the file
        told = json.loads(path.read_text()) if path.exists() else {}
        self._noticed: dict[str, Any] = told.get("noticed", {})  # by verification
        self._ran: dict[str, Any] = told.get("ran", {})  # by file of tests

    def noticed(self, found: Verification) -> str | None:
        """The test that has noticed, unless it or the verification's file has changed."""
        kept = self._noticed.get(found.name)
        return kept["test"] if kept and kept["hashes"] == _hashes(found, kept["test"]) else None

    def note(self, found: Verification, test: str | None) -> None:
        """One mutant was tried."""
        with self._lock:
            self._noticed.pop(found.name, None)
            if test is not None:
                self._noticed[found.name] = {"test": test, "hashes": _hashes(found, test)}
            self._write()

    def is_known(self, tests: str) -> bool:
        """Whether it is known what the tests of a file run."""
        return bool(self._ran.get(tests, {}).get("hash") == _hash(ROOT / tests))

    def note_ran(self, files: list[str], ran: TestsThatRan) -> None:
        """These files of tests were traced."""
        traced: dict[str, Any] = {
            file: {"hash": _hash(ROOT / file), "by_name": {}, "seconds": {}} for file in files
        }
        for test, seconds in ran.seconds.items():
            traced[_file_of(test)]["seconds"][test] = round(seconds, 3)
        for name, tests in ran.by_name.items():
            for test in sorted(tests):
                traced[_file_of(test)]["by_name"].setdefault(name, []).append(test)
        with self._lock:
            self._ran.update(traced)
            self._write()

    def ran(self, found: Verification) -> list[str]:
        """The tests that were seen to run a verification, the quickest first."""
        times = [
            (of_file["seconds"][test], test)
            for file, of_file in self._ran.items()
            if self.is_known(file)
            for test in of_file["by_name"].get(found.name, ())
        ]
        return [test for _, test in sorted(times)]

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps({"noticed": self._noticed, "ran": self._ran}))
        part.replace(self._path)


class Mutants:
    """Tries one mutant after the other, each in a copy of the tree that nobody else uses."""

    def __init__(self, kept: Kept, tests: Tests, unchanged: Path, trees: list[Path]) -> None:
        self._kept, self._tests, self._unchanged = kept, tests, unchanged
        self._times = itertools.count(1)
        self._trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for tree in trees:
            self._trees.put(tree)

    def tried(self, found: Verification, python: Python) -> Verdict:
        """Print what becomes of one mutant."""
        began = time.monotonic()
        tree = self._trees.get()
        try:
            verdict = self._verdict(tree, found, python)
        finally:
            self._trees.put(tree)
        self._kept.note(found, verdict.noticed)
        took = f"{time.monotonic() - began:5.0f} s"
        said = f"noticed by {_short(verdict.noticed)}" if verdict.noticed else verdict.why_not
        print(f"{found.what:24} {found.path}:{found.line}  {took}  {said}", flush=True)
        return verdict

    def _verdict(self, tree: Path, found: Verification, python: Python) -> Verdict:
        path = tree / found.path
        source = path.read_text()
        path.write_text(neutralised(source, found))
        self._stamp(path)
        try:
            return self._notice(tree, found, python)
        finally:
            path.write_text(source)
            self._stamp(path)

    def _stamp(self, path: Path) -> None:
        """What was compiled of a text of the same second and length is not taken for this one."""
        os.utime(path, times=(next(self._times),) * 2)

    def _notice(self, tree: Path, found: Verification, python: Python) -> Verdict:
        """Run the tests that ran the line, then all others; a flaky one is left out from then."""
        bad: list[str] = []  # flaky, or late
        passed: list[str] = []
        verdict = Verdict(None)
        seen = self._kept.ran(found)[:SEEN_MAX]
        for where in (seen[:FIRST], seen[FIRST:], tests_of(found.path)):
            while where and (result := self._tests.run(tree, where, python, bad + passed)):
                if isinstance(result, Unclear):
                    verdict = Verdict(None, f"UNCLEAR: {result.why}")
                    break
                if result.is_late:
                    verdict = Verdict(None, f"TIMED OUT in {_short(result.test)}")
                elif self._tests.run(self._unchanged, [result.test], python) is None:
                    return Verdict(result.test)
                else:
                    print(f"{_short(result.test)} fails without any mutation, too", flush=True)
                bad.append(result.test)
                if len(bad) >= BAD_MAX:
                    return verdict
            else:
                passed += where
        return verdict


def main() -> int:
    """Print a row a mutant; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only lines whose comment has it")
    parser.add_argument("--under", nargs="+", default=["src"], help="only files below these paths")
    parser.add_argument("--anew", action="store_true", help="forget what earlier runs have found")
    parser.add_argument(
        "--numpy", default=str(ROOT / ".venv-vllm/bin/python"), help="a Python that has vLLM"
    )
    parser.add_argument("--at-once", type=int, default=2, help="mutants")
    parsed = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    marked = list(verifications(ROOT))
    if bad := bad_marks(ROOT, marked):
        print("\n".join(bad))
        return 1
    found_all = [
        found
        for found in marked
        if parsed.word in found.what and str(found.path).startswith(tuple(parsed.under))
    ]
    if parsed.anew:
        KEPT.unlink(missing_ok=True)
    kept = Kept(KEPT)
    pythons = {found: python_for(found.path, parsed.numpy) for found in found_all}
    wanted = [(found, python) for found, python in pythons.items() if python is not None]
    for found in found_all:
        if pythons[found] is None:
            print(f"{found.what:24} {found.path}:{found.line}  skipped: needs vLLM, see --numpy")
    changed = [(found, python) for found, python in wanted if not kept.noticed(found)]
    failed = tried(kept, changed, parsed.at_once)
    print(
        f"{len(wanted)} verifications, {len(wanted) - len(changed)} as before,"
        f" {failed} that no test holds; {len(found_all) - len(wanted)} skipped"
    )
    return 1 if failed or not wanted else 0


def tried(kept: Kept, wanted: list[tuple[Verification, Python]], at_once: int) -> int:
    """How many of these no test notices."""
    with tempfile.TemporaryDirectory(prefix="forebay-mutate-") as temporary:
        unchanged, *trees = (Path(temporary, str(number)) for number in range(1 + at_once))
        for tree in (unchanged, *trees):
            copy_tree(tree)
        tests = Tests(at_once)
        for found, python in wanted:
            trace(kept, tests, unchanged, found, python)
        mutants = Mutants(kept, tests, unchanged, trees)
        with ThreadPoolExecutor(at_once) as executor:
            try:
                verdicts = list(executor.map(lambda each: mutants.tried(*each), wanted))
            finally:
                tests.end()
    return sum(verdict.noticed is None for verdict in verdicts)


def trace(kept: Kept, tests: Tests, tree: Path, found: Verification, python: Python) -> None:
    """Have it known what the tests run that should notice a mutant."""
    for where in tests_of(found.path):
        under = ROOT / where
        paths = [under] if under.is_file() else sorted(under.rglob("test_*.py"))
        names = [str(path.relative_to(ROOT)) for path in paths]
        names = [name for name in names if not name.startswith(NOT_TRACED)]
        if files := [name for name in names if not kept.is_known(name)]:
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as place:
                why = tests.trace(tree, files, python, {DIRECTORY: place})
                kept.note_ran(files, TestsThatRan.read(Path(place)))
            took = f"{time.monotonic() - began:.0f} s"
            print(f"traced {len(files)} files of {where} in {took}; {why}", flush=True)


def python_for(path: Path, with_numpy: str) -> Python | None:
    """What runs the tests of a file; None if it is not there."""
    if path.parts[2] != "engines":
        return Python(sys.executable)
    if Path(with_numpy).exists():
        return Python(with_numpy, has_vllm=True)
    return None if path.parts[3] in NUMPY else Python(sys.executable)


def copy_tree(tree: Path) -> None:
    """What the tests need, away from the original."""
    tree.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests", "tools", "docs", "examples", "deploy"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)


def tests_of(path: Path) -> list[str]:
    """The directories whose tests should notice a mutant of this file."""
    if named := TESTS.get(path.parts[2]):
        return named
    mirror = Path("tests", *path.parts[2:-1])
    while not (ROOT / mirror).is_dir():
        mirror = mirror.parent
    return [str(mirror)]


def _hashes(found: Verification, test: str) -> list[str]:
    return [_hash(ROOT / found.path), _hash(ROOT / _file_of(test))]


def _hash(path: Path) -> str:
    data = path.read_bytes() if path.exists() else b""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _short(test: str | None) -> str:
    return (test or "").rpartition("/")[2][:90]


if __name__ == "__main__":
    sys.exit(main())
