"""Rules are read from text, and what is not a rule is refused with a sentence."""

import errno

import pytest

from forebay.errors import SettingsError
from forebay.testing.faults import Effect, Fault, Operation, Rules, parse_fault

READ, WRITE = frozenset({Operation.READ}), frozenset({Operation.WRITE})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("read:latency=200ms", Fault(READ, Effect.LATENCY, 0.2)),
        ("read:latency=1.5s", Fault(READ, Effect.LATENCY, 1.5)),
        ("write:errno=ENOSPC@3", Fault(WRITE, Effect.ERRNO, errno.ENOSPC, 3, 3)),
        ("write:errno=EIO@3+", Fault(WRITE, Effect.ERRNO, errno.EIO, 3, None)),
        ("read:flip=2@5%", Fault(READ, Effect.FLIP, 2, probability=0.05)),
        ("read+write:misdirect=4KiB", Fault(READ | WRITE, Effect.MISDIRECT, 4096)),
        ("write:tear=512", Fault(WRITE, Effect.TEAR, 512)),
        ("read:hang", Fault(READ, Effect.HANG)),
        ("write:kill=after@7", Fault(WRITE, Effect.KILL, 1, 7, 7)),
        (
            "*:errno=EIO",
            Fault(frozenset(Operation) - {Operation.CLOSE}, Effect.ERRNO, errno.EIO),
        ),
    ],
)
def test_a_rule_is_read_from_text(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read",
        "read:",
        "read:explode=1",
        "reed:errno=EIO",
        "read:errno=EWHATEVER",
        "read:errno=errorcode",
        "read:errno",
        "read:hang=1",
        "read:latency=200",
        "read:flip=many",
        "rename:flip=1",
        "write:kill=during",
        "read:errno=EIO@",
        "read:errno=EIO@0",
        "read:errno=EIO@101%",
        "read:errno=EIO@x",
        "read:errno=EIO@-1",
        "read+:errno=EIO",
    ],
)
def test_what_is_not_a_rule_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_fault(text)
    assert str(caught.value).endswith(".")


def matching(rules: Rules, count: int) -> list[int]:
    return [n for n in range(1, count + 1) if rules.matching(Operation.READ, "/a/b")]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("read:errno=EIO@3", [3]),
        ("read:errno=EIO@4+", [4, 5, 6]),
        ("read:errno=EIO", [1, 2, 3, 4, 5, 6]),
        ("write:errno=EIO", []),
    ],
)
def test_a_rule_strikes_the_calls_it_names(text: str, calls: list[int]) -> None:
    rules = Rules(seed=0)
    rules.arm(parse_fault(text))
    assert matching(rules, 6) == calls


def test_chance_follows_from_the_seed() -> None:
    def run(seed: int) -> list[int]:
        rules = Rules(seed)
        rules.arm(parse_fault("read:errno=EIO@30%"))
        return matching(rules, 100)

    assert run(1) == run(1) != run(2)
    assert 15 < len(run(1)) < 45


def test_a_rule_is_limited_to_a_path_and_ends_when_disarmed() -> None:
    rules = Rules(seed=0)
    rules.arm(Fault(READ, Effect.ERRNO, errno.EIO, within="/elsewhere/"))
    here = rules.arm(Fault(READ, Effect.ERRNO, errno.EIO, within="/a/"))
    assert matching(rules, 2) == [1, 2]
    here.disarm()
    assert matching(rules, 2) == []
    assert (here.calls, here.fired) == (2, 2)
    assert rules.calls[Operation.READ] == 4
