"""One store: reserve, copy, commit, in windows, until everything is stored or time is up.

The digest in a commit is of the caller's payload, never of the slot, which other processes map.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from forebay.pool.client.calls import Calls
from forebay.pool.client.chain import Chain
from forebay.pool.client.outcomes import Receipt
from forebay.pool.messages import Commit, Committed, Reserve, ReserveAnswer, Reserved
from forebay.record.header import pieces_hash
from forebay.tiers.contract import Miss, MissReason

# One buffer, or several that are stored one behind the other without being joined first.
Payload: TypeAlias = bytes | memoryview | Sequence[memoryview]
_WINDOW: Final = 32  # chunks reserved at once
_PAUSE_S: Final = 0.002  # pause before asking again for a slot


@dataclass(slots=True)
class StoreCall:
    """The chunks of one call that are not stored yet, and what became of the others."""

    calls: Calls
    chain: Chain
    payloads: Sequence[Payload]
    first: int  # position in the chain of payloads[0]

    def run(self, until: float) -> Receipt:
        """Store as many chunks as possible until then."""
        counts: Counter[str] = Counter()
        waiting = deque(range(len(self.payloads)))
        while waiting:
            if self.calls.clock.monotonic() >= until:
                counts["late"] += len(waiting)
                break
            window = [waiting.popleft() for _ in range(min(_WINDOW, len(waiting)))]
            answers = self._reserve(window, until)
            if isinstance(answers, Miss):
                fate = "late" if answers.reason is MissReason.DEADLINE else "lost"
                counts[fate] += len(window) + len(waiting)
                break
            again = self._settle(window, answers, until, counts)
            if not self.calls.session.is_joined:
                counts["lost"] += len(again) + len(waiting)
                break
            if again:
                waiting.extendleft(reversed(again))
                self.calls.rest(min(until, self.calls.clock.monotonic() + _PAUSE_S))
        return Receipt(**counts)

    def _reserve(self, window: list[int], until: float) -> list[int] | Miss:
        batch = self.calls.number()
        lengths = [(self.first + index, sum(map(len, self._pieces(index)))) for index in window]
        session = self.calls.session
        runs = self.chain.runs(lengths, session.salt_hash(self.chain.salt))
        session.post(Reserve(batch, runs))
        reserved = self.calls.wait(Reserved, lambda answer: answer.batch == batch, until)
        if isinstance(reserved, Miss):
            self.calls.abandon(batch)
            return reserved
        generation = self.calls.session.generation
        if reserved.generation != generation or len(reserved.answers) != len(window):
            return Miss(MissReason.NO_POOL)
        return reserved.answers

    def _settle(
        self, window: list[int], answers: list[int], until: float, counts: Counter[str]
    ) -> list[int]:
        """Fill and commit the slots in these answers; returns the chunks to ask for again."""
        filled: dict[int, bytes] = {}  # slot → digest of its payload
        unfilled: list[int] = []
        again: list[int] = []
        for index, answer in zip(window, answers, strict=True):
            if answer >= 0:
                in_time = self.calls.clock.monotonic() < until
                if in_time and self._copy(index, answer):
                    filled[answer] = pieces_hash(self._pieces(index))
                else:
                    unfilled.append(answer)
            elif answer == ReserveAnswer.HAVE:
                counts["had"] += 1
            elif (
                answer == ReserveAnswer.LATER or again
            ):  # after a chunk that waits, NO is not final
                again.append(index)
            else:
                counts["unwanted"] += 1
        counts["late"] += len(unfilled)
        self.calls.session.abort(self.calls.session.generation, unfilled)
        if filled:
            self._commit(filled, until, counts)
        return again

    def _copy(self, index: int, offset: int) -> bool:
        pieces = self._pieces(index)
        slab = self.calls.session.slab
        slot = slab.view(offset, sum(map(len, pieces))) if slab is not None else None
        if slot is None:
            return False
        with slot:
            at = 0
            for piece in pieces:
                slot[at : at + len(piece)] = piece
                at += len(piece)
        return True

    def _pieces(self, index: int) -> Sequence[bytes | memoryview]:
        payload = self.payloads[index]
        return (payload,) if isinstance(payload, bytes | memoryview) else payload

    def _commit(self, filled: dict[int, bytes], until: float, counts: Counter[str]) -> None:
        offsets = list(filled)
        commit = Commit(self.calls.session.generation, offsets, b"".join(filled.values()))
        committed = self.calls.call(commit, Committed, until)
        if isinstance(committed, Miss):
            late = committed.reason is MissReason.DEADLINE
            counts["late" if late else "lost"] += len(offsets)
            return
        count = min(max(committed.count, 0), len(offsets))
        counts["stored"] += count
        counts["unwanted"] += len(offsets) - count
