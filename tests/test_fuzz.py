"""What reads bytes of others survives hostile inputs; `make fuzz` tries many more."""

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest
from tests.fuzz_targets import TARGETS, FuzzTarget

TOOL = Path(__file__).parent.parent / "tools" / "fuzz.py"
INPUTS = 400


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", TARGETS)
def test_t39_hostile_bytes_are_data(fuzz: ModuleType, name: str, seed: int) -> None:
    target = TARGETS[name]
    count, findings = fuzz.fuzzed(target, random.Random(seed), lambda count: count < INPUTS)
    assert [finding.why for finding in findings] == []
    assert count == INPUTS > len(target.corpus())


def test_a_reader_that_crashes_is_found(fuzz: ModuleType, seed: int) -> None:
    def read(data: bytes) -> None:
        assert b"\xff" not in data, "a bug"

    target = FuzzTarget("sample", read, lambda: [b"abc"])
    _, findings = fuzz.fuzzed(target, random.Random(seed), lambda count: count < 10_000)
    assert findings
    assert "a bug" in findings[0].why
