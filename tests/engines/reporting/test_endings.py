"""Answers that end with the same marker have one class, others none that tells of their text."""

import random

from forebay.engines.reporting.endings import Endings
from forebay.identity.endings import MARKER_FIRST, EndingClass

TOOL = [5, 9, 1001, 2]  # ... the marker of a tool call, and the end of the turn
TURN = [7, 8, 1003, 2]


def test_frequent_markers_have_classes_of_their_own() -> None:
    endings = Endings()
    for _ in range(10):
        classes = [endings.classify("STOP", answer) for answer in (TOOL, TURN)]
    assert min(classes) >= MARKER_FIRST
    assert len(set(classes)) == 2
    again = Endings()
    for _ in range(10):
        same = [
            again.classify("STOP", [*range(n), *answer]) for n, answer in ((4, TOOL), (0, TURN))
        ]
    assert same == classes, "another engine has the same numbers"


def test_rare_last_tokens_have_no_class() -> None:
    endings, chance = Endings(), random.Random(1)
    found = {
        endings.classify("STOP", [chance.randrange(100_000), chance.randrange(100_000)])
        for _ in range(2000)
    }
    assert found == {EndingClass.STOP}
    assert len(endings._seen) <= 513


def test_other_reasons_are_classes() -> None:
    endings = Endings()
    found = [endings.classify(reason, TOOL) for reason in ("LENGTH", "ABORT", "ERROR", "") * 9]
    wanted = [EndingClass.LENGTH, EndingClass.ABORT, EndingClass.OTHER, EndingClass.OTHER]
    assert found == wanted * 9
    assert endings.classify("STOP", []) == EndingClass.STOP


def test_a_prompt_follows_the_answer_to_its_longest_known_beginning() -> None:
    endings = Endings()
    endings.remember(b"b", 17)
    endings.remember(b"c", 18)
    assert endings.before([b"a", b"b", b"c", b"d"]) == 18
    assert endings.before([b"a", b"b", b"x"]) == 17
    assert endings.before([b"a"]) == EndingClass.NOT_KNOWN
    for number in range(1 << 15):
        endings.remember(number.to_bytes(4, "big"), 19)
    assert endings.before([b"b"]) == EndingClass.NOT_KNOWN, "what is long ago is forgotten"
