"""Checks of recorded prompts: dates and ids at the beginning, questions, documents, tools.

They compare the requests of a file with each other and say where something is, never what.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations, islice
from typing import Final

from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import (
    Check,
    Group,
    Observation,
    Severity,
    ok,
    skipped,
    warning,
)
from forebay.observe.doctor.prompts.layout import RecordedPrompt

_SHARED_LETTERS_MIN: Final = 64  # a shared line of this length counts as part of a document
_BLOCKS_MAX: Final = 32  # of one prompt, that are compared in pairs
_MARKS_MAX: Final = 8  # dates and ids of one prompt that are compared with others
_SHOWN: Final = 3  # places named in a sentence
_DOCUMENTS: Final = "see docs/documents.md."


def _recorded(facts: Facts) -> tuple[RecordedPrompt, ...] | Observation:
    found = facts.inputs.prompts
    if found is None:
        return skipped("No prompts were looked at: give a file of requests with --prompts.")
    if len(found) < 2:
        return skipped("One prompt cannot be compared: record two requests or more.")
    return found


def _head(facts: Facts) -> Iterator[Observation]:
    """Find lines near the beginning that differ only in dates and ids."""
    prompts = _recorded(facts)
    if isinstance(prompts, Observation):
        yield prompts
        return
    bad = _differing(prompts)
    marks = [
        (prompt.number, line.mark)
        for prompt in prompts
        for line in prompt.lines
        if line.mark is not None and line.plain in bad
    ]
    if not marks:
        yield ok("No prompts differ near their beginning in a date, a time or an id alone.")
        return
    places = {(mark.kind, mark.place): (number, mark) for number, mark in reversed(marks)}
    listed = sorted(places.values())[:_SHOWN]
    shown = "; ".join(
        f"line {number} of the file: {mark.kind} at letter {mark.letter} of {mark.place}"
        for number, mark in listed
    )
    yield warning(
        f"In {_of({number for number, _ in marks}, prompts)}, a line near the beginning differs"
        " from others' in a date, a time or an id alone, and nothing behind it is shared"
        f" ({shown}).",
        "Move it behind what prompts have in common, into the last message, or leave it out.",
    )


def _question(facts: Facts) -> Iterator[Observation]:
    """Find requests that have shared lines after the last line that only they have."""
    prompts = _recorded(facts)
    if isinstance(prompts, Observation):
        yield prompts
        return
    counted = _requests_by_line(prompts)
    found = []
    for prompt in prompts:
        own = [at for at, line in enumerate(prompt.lines) if counted[line.name] == 1]
        behind = prompt.lines[own[-1] + 1 :] if own else ()
        letters = sum(line.letters for line in behind)
        if any(line.letters >= _SHARED_LETTERS_MIN for line in behind):
            found.append((prompt.number, letters))
    if not found:
        yield ok("What is of one prompt alone stands behind what prompts have in common.")
        return
    number, letters = found[0]
    yield warning(
        f"In {_of({number for number, _ in found}, prompts)}, what is of this request alone, such"
        " as a question, stands before text that others have too, as documents or instructions"
        f" (line {number} of the file: before its last {letters:,} letters).",
        "Put the question last.",
    )


def _documents(facts: Facts) -> Iterator[Observation]:
    """Find blocks that come in different orders in different requests."""
    prompts = _recorded(facts)
    if isinstance(prompts, Observation):
        yield prompts
        return
    first: dict[tuple[int, int], int] = {}  # two blocks in order → the first request with these
    found = []
    for prompt, blocks in zip(prompts, _blocks(prompts), strict=True):
        pairs = list(combinations(blocks, 2))
        others = [first[after, before] for before, after in pairs if (after, before) in first]
        if others:
            found.append((prompt.number, min(others)))
        for pair in pairs:
            first.setdefault(pair, prompt.number)
    if not found:
        yield ok("No blocks of text come in changing order.")
        return
    number, other = found[0]
    yield warning(
        f"In {_of({number for number, _ in found}, prompts)}, blocks of text come in another order"
        f" than in requests before (first in line {number} of the file, against line {other}).",
        f"Give documents one order: mark them for the gateway, or sort them; {_DOCUMENTS}",
    )


def _tools(facts: Facts) -> Iterator[Observation]:
    """Find equal sets of tools that are written differently."""
    prompts = _recorded(facts)
    if isinstance(prompts, Observation):
        yield prompts
        return
    orders: defaultdict[frozenset[int], dict[tuple[int, ...], int]] = defaultdict(dict)
    for prompt in prompts:
        if prompt.tools:
            orders[prompt.tool_set].setdefault(prompt.tools, prompt.number)
    several = {tools: written for tools, written in orders.items() if len(written) > 1}
    if not several:
        yield ok("The same tools come in the same order.")
        return
    tools, written = max(several.items(), key=lambda each: len(each[1]))
    numbers = sorted(written.values())[:_SHOWN]
    yield warning(
        f"The same tools ({len(tools)}) come in {len(written)} orders, or with their members in"
        f" other orders (lines {', '.join(map(str, numbers))} of the file). They stand before"
        " everything else in a prompt.",
        "Sort tools by name, and write each one always alike.",
    )


def _differing(prompts: Iterable[RecordedPrompt]) -> set[int]:
    """Lines, without their dates and ids, that keep what follows from being a shared prefix.

    Several lines differ only in dates and ids; they are long, or the same long line follows them.
    """
    behind: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for prompt in prompts:
        marked = [(at, line) for at, line in enumerate(prompt.lines) if line.mark is not None]
        for at, line in marked[:_MARKS_MAX]:
            rest = prompt.lines[at + 1 :]
            if rest and line.letters >= _SHARED_LETTERS_MIN:
                behind[line.plain, line.plain].add(line.name)
            later = (each.plain for each in rest if each.letters >= _SHARED_LETTERS_MIN)
            for plain in islice(later, _BLOCKS_MAX):
                behind[line.plain, plain].add(line.name)
    return {plain for (plain, _), names in behind.items() if len(names) > 1}


def _requests_by_line(prompts: Iterable[RecordedPrompt]) -> Counter[int]:
    """How many requests have each line."""
    return Counter(name for prompt in prompts for name in {line.name for line in prompt.lines})


def _blocks(prompts: tuple[RecordedPrompt, ...]) -> Iterator[list[int]]:
    """For each prompt, the lines with which blocks begin.

    These are long lines that follow different lines in different prompts. Within a block, such as
    a document, each line always follows the same one.
    """
    before: defaultdict[int, set[int]] = defaultdict(set)
    for prompt in prompts:
        last = 0
        for line in prompt.lines:
            if len(seen := before[line.name]) < 2:
                seen.add(last)
            last = line.name
    for prompt in prompts:
        names = dict.fromkeys(
            line.name
            for line in prompt.lines
            if line.letters >= _SHARED_LETTERS_MIN and len(before[line.name]) > 1
        )
        yield list(names)[:_BLOCKS_MAX]


def _of(numbers: set[int], prompts: tuple[RecordedPrompt, ...]) -> str:
    return f"{len(numbers):,} of {len(prompts):,} requests"


CHECKS: Final = (
    Check(
        "prompts.head",
        Group.PROMPTS,
        "dates, times and ids that make the beginning of each prompt another one"
        " (`--prompts FILE`, as all of these)",
        Severity.WARNING,
        _head,
    ),
    Check(
        "prompts.question",
        Group.PROMPTS,
        "a question before documents or instructions that others have too",
        Severity.WARNING,
        _question,
    ),
    Check(
        "prompts.documents",
        Group.PROMPTS,
        "the same documents in changing order",
        Severity.WARNING,
        _documents,
    ),
    Check(
        "prompts.tools",
        Group.PROMPTS,
        "the same tools in changing order",
        Severity.WARNING,
        _tools,
    ),
)
