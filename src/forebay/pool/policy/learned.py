"""The default policy: keeps the chunks that are most likely to be used soon, for their size.

`reuse` says how that is learnt, `visits` how the least valuable chunk is found in a few
microseconds, and `admission` what is written to lower tiers.
"""

import heapq
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

from forebay.identity.endings import EndingClass
from forebay.pool.policy.admission import Admission, LowerTier
from forebay.pool.policy.ahead import SAVED_LEVELS, DialogsToRead
from forebay.pool.policy.contract import Ending, Policy, ToRead
from forebay.pool.policy.forest import (
    HELD,
    NONE,
    OFFERED,
    PENDING,
    REFUSED,
    SAFETIES,
    SAVED,
    Forest,
)
from forebay.pool.policy.reuse import (
    BINS,
    LEVELS,
    LEVELS_AN_OCTAVE,
    Reuse,
    cell_of,
    ending_of,
    mean_gap_s,
)
from forebay.pool.policy.sessions import Sessions
from forebay.pool.policy.visits import (
    ADMITTED,
    EVICTABLE,
    KEPT,
    NOT_EVICTABLE,
    RANKS,
    USUAL,
    Visits,
)
from forebay.pool.policy.writing import Writing
from forebay.settings import PrefetchMode

# One step of priority doubles a chunk's worth; one that a caller wants kept is worth more than all.
RANK_LEVELS: Final = (*(LEVELS_AN_OCTAVE * (rank - USUAL) for rank in range(KEPT)), 2 * LEVELS)
KEPT_MAX: Final = 1 << 14  # visits kept because their callers asked for it
REMEMBERED_VISITS_MAX: Final = 1 << 16
UNANSWERED_MAX: Final = 64  # requests counted with one last key, as answers may never be told
LEARN_REQUESTS: Final = 4
USUAL_REQUESTS: Final = 256  # requests in the mean length of a first prompt


class Learned(Policy):
    """One pool's policy over the tiers below DRAM, the nearest first."""

    def __init__(
        self, tiers: Sequence[LowerTier] = (), prefetch: PrefetchMode = PrefetchMode.OFF
    ) -> None:
        self._forest = Forest(len(tiers))
        self._reuse = Reuse()
        self._visits = Visits(self._reuse, len(tiers))
        self._writing = [
            Writing(
                number, self._forest, self._visits, self._reuse, Admission(tier), mark=self._mark
            )
            for number, tier in enumerate(tiers)
        ]
        self._to_read = DialogsToRead(
            prefetch, self._forest, self._visits, self._reuse, least=self._least_to_lose
        )
        self._size_classes: dict[int, int] = {}  # slot bytes -> its number
        self._ends: dict[bytes, int] = {}  # last key of a chain -> its last visit
        self._starts: dict[bytes, int] = {}  # first key that DRAM lacked -> the visit storing it
        self._sessions = Sessions(self._visits)
        self._kept: list[tuple[float, int, bytes]] = []  # kept until, rank afterwards, last key
        self._ranks = [USUAL]  # ranks used so far
        self._usual_depth = 0.0  # mean number of chunks of a dialog's first prompt
        self._requests = 0

    def requested(self, keys: Sequence[bytes], found: int, now: float) -> None:
        self._age(now)
        if not keys:
            return
        self._requests += 1
        if self._requests % LEARN_REQUESTS == 0:
            self._visits.learn()
        visit = self._begin(keys, found, now)
        rows = list(map(self._forest.row_of.get, keys[:found]))
        start = self._assign(visit, keys, rows)
        if start is None and found < len(keys):
            start = keys[found]
        if start is not None:
            self._visits.start[visit], self._starts[start] = start, visit
        held = [row for row in rows if row is not None]
        for row in held:
            self._forest.reused[row] = 1
        for writing in self._writing:
            for row in held:
                writing.queue(row, now)

    def ended(self, key: bytes, ending: Ending, now: float) -> None:
        visits = self._visits
        self._age(now)
        visit = self._ends.get(key, NONE)
        if visit == NONE or not visits.unanswered[visit]:
            return
        visits.unanswered[visit] -= 1
        now = max(now, visits.began_s[visit])
        if ending.session:
            self._sessions.ended(ending, visit, now)
        kind, mean_s = ending.kind, (visits.gaps[visit] or {}).get(ending.kind, 0.0)
        if ending.returns_in_s:
            kind, mean_s = EndingClass.EXPECTED, ending.returns_in_s
        # A dialog without an answer of this class has no gap that would tell of this one.
        turns = max(1, visits.turns[visit]) if mean_s else 0
        visits.ended(visit, cell_of(turns, mean_s, visits.new_share[visit], kind), now)
        self._to_read.judge(visit)
        if ending.keep_s:
            heapq.heappush(self._kept, (now + ending.keep_s, USUAL + ending.priority, key))
            self._set_rank(visit, KEPT)
        elif ending.priority:
            self._set_rank(visit, USUAL + ending.priority)

    def stored(self, key: bytes, parent: bytes | None, slot_bytes: int, now: float) -> None:
        forest, visits = self._forest, self._visits
        if key in forest.row_of:
            return
        row = forest.add(key, parent, self._size_class(slot_bytes))
        above = forest.parent[row]
        visit = self._joined(key, above, now, self._to_read.came(key))
        self._started(visit, key)
        forest.visit[row] = visit
        visits.tail[visit] = row
        for writing in self._writing:
            writing.queue(row, now)
        self._enqueue(visit)

    def removed(self, key: bytes) -> None:
        forest = self._forest
        if key not in forest.row_of:
            return
        row = forest.row_of[key]
        visit = forest.visit[row]
        self._to_read.removed(visit, row, key)
        _, above = forest.drop(key)
        if self._visits.tail[visit] == row:
            follows = above != NONE and forest.visit[above] == visit
            self._visits.tail[visit] = above if follows else NONE
            if follows:
                self._enqueue(visit)
            else:
                self._emptied(visit)
        if above != NONE and not forest.children[above]:
            self._make_tail(above)

    def pin(self, *keys: bytes) -> None:
        pins = self._forest.pins
        for row in map(self._forest.row_of.get, keys):
            if row is not None:
                pins[row] += 1

    def unpin(self, key: bytes) -> None:
        forest = self._forest
        row = forest.row_of.get(key, NONE)
        if row != NONE and forest.pins[row]:
            forest.pins[row] -= 1
            if not forest.pins[row] and self._visits.tail[forest.visit[row]] == row:
                self._enqueue(forest.visit[row])

    def declines(self, key: bytes, parent: bytes | None, now: float, slot_bytes: int) -> bool:
        self._age(now)
        newcomer = self._starts.get(key, NONE)
        if newcomer == NONE and parent is not None:
            above = self._forest.row_of.get(parent, NONE)
            newcomer = NONE if above == NONE else self._forest.visit[above]
        visit, least = self._least(slot_bytes, spare_unwritten=False)
        if NONE in (newcomer, visit):
            return False
        if visit != newcomer and self._reuse.level(self._visits.cell[newcomer]) >= least:
            return False
        # A chunk needs a slot until it is written: it is written from DRAM.
        return not any(writing.admits(newcomer, slot_bytes, now) for writing in self._writing)

    def victim(self, now: float, slot_bytes: int, *, spare_unwritten: bool = False) -> bytes | None:
        self._age(now)
        spare = spare_unwritten and self._can_write
        while True:
            visit, _ = self._least(slot_bytes, spare_unwritten=spare)
            if visit == NONE:
                if spare_unwritten:
                    for writing in self._writing:
                        writing.hurry()
                return None
            row = self._visits.tail[visit]
            if not self._forest.pins[row]:
                for writing in self._writing:
                    writing.dram_evicted(now - self._visits.at_s[visit])
                return self._forest.key[row]
            self._visits.move(visit, NOT_EVICTABLE)  # not evictable until it is unpinned

    def in_tiers(self, key: bytes, tiers: Collection[int]) -> None:
        row = self._forest.row_of.get(key, NONE)
        if row == NONE:
            return
        if tiers and not any(flags[row] & (HELD | OFFERED) for flags in self._forest.flags):
            self._forest.reused[row] = 1  # it was read from a lower tier
        for tier, flags in enumerate(self._forest.flags):
            if tier in tiers:
                self._mark(tier, row, HELD)
            elif flags[row] & HELD:
                self._mark(tier, row, 0)

    def write_failed(self, key: bytes, tier: int) -> None:
        row = self._forest.row_of.get(key, NONE)
        if row != NONE:
            self._mark(tier, row, REFUSED)

    def write_again(self, key: bytes, tier: int, now: float) -> None:
        row = self._forest.row_of.get(key, NONE)
        if row != NONE and not self._forest.flags[tier][row] & HELD:
            self._mark(tier, row, 0)
            self._writing[tier].queue(row, now)

    def hold_writes(self, tier: int, *, held: bool) -> None:
        self._writing[tier].hold(held=held)

    def next_write(self, tier: int, now: float, *, idle: bool = False) -> bytes | None:
        self._age(now)
        return self._writing[tier].next(now, idle=idle)

    def next_read(self, now: float, has_room: Callable[[int], bool]) -> ToRead | None:
        self._age(now)
        return self._to_read.next(has_room)

    def read_failed(self, key: bytes) -> None:
        self._to_read.failed(key)

    @property
    def queued_bytes(self) -> int:
        return self._forest.queued_bytes if self._can_write else 0

    def evicted(self, tier: int, size_bytes: int, read_bytes: int, now: float) -> None:
        self._age(now)
        self._writing[tier].admission.evicted(size_bytes, read_bytes)

    def _age(self, now: float) -> None:
        """Let visits grow older, and stop keeping those whose time is over."""
        self._visits.age(now)
        while self._kept and (self._kept[0][0] <= now or len(self._kept) > KEPT_MAX):
            _, rank, key = heapq.heappop(self._kept)
            visit = self._ends.get(key, NONE)
            if visit != NONE and self._visits.rank[visit] == KEPT:
                self._set_rank(visit, rank)

    def _set_rank(self, visit: int, rank: int) -> None:
        """Change a visit's rank, and so its queue."""
        self._visits.rank[visit] = rank
        if rank not in self._ranks:
            self._ranks.append(rank)
        if self._visits.tail[visit] != NONE:
            self._enqueue(visit)

    @property
    def _can_write(self) -> bool:
        """Whether the nearest tier can be given more of what waits for it."""
        return bool(self._writing) and self._writing[0].can_write

    def _mark(self, tier: int, row: int, flags: int) -> None:
        """Change a chunk's flags, and so its visit's queue."""
        self._forest.mark(tier, row, flags)
        if self._visits.tail[self._forest.visit[row]] == row:
            self._enqueue(self._forest.visit[row])

    def _begin(self, keys: Sequence[bytes], found: int, now: float) -> int:
        """The new visit of a request; the visit that it continues, if known, has returned."""
        visits, ends = self._visits, self._ends
        turns, mean_s, known = 0, 0.0, found
        same = ends.get(keys[-1], NONE)
        unanswered = 0 if same == NONE else visits.unanswered[same]
        gaps: dict[int, float] | None = None
        tie_breaker = zlib.crc32(keys[-1]) / 2**32
        admitted: list[int] = []  # tiers that go on being written to
        for key in reversed(keys):
            before = ends.get(key, NONE)
            if before != NONE and visits.depth[before] > 1:
                turns = visits.turns[before] + 1
                mean_s = mean_gap_s(visits.mean_s[before], now - visits.at_s[before])
                gaps = self._gaps_after(before, now)
                known, tie_breaker = visits.depth[before], visits.tie_breaker[before]
                if found >= known:  # what was written of it is still there
                    verdicts = enumerate(visits.verdicts)
                    admitted = [tier for tier, of in verdicts if of[before] == ADMITTED]
                visits.returned(before, now)
                self._end(before)
                break
        new_share = 1 - known / len(keys) if turns else self._relative_depth(len(keys))
        visit = visits.begin(cell_of(turns, mean_s, new_share), keys[-1], now)
        visits.turns[visit], visits.mean_s[visit] = turns, mean_s
        visits.unanswered[visit] = min(unanswered + 1, UNANSWERED_MAX)
        visits.new_share[visit], visits.gaps[visit] = new_share, gaps
        visits.depth[visit], visits.tie_breaker[visit] = len(keys), tie_breaker
        for tier in admitted:
            visits.verdicts[tier][visit] = ADMITTED
        if keys[-1] in ends:
            self._end(ends[keys[-1]])
        ends[keys[-1]] = visit
        if len(ends) > REMEMBERED_VISITS_MAX:
            self._end(next(iter(ends.values())))
        return visit

    def _gaps_after(self, before: int, now: float) -> dict[int, float] | None:
        """A returned dialog's mean gaps, by the class of the answer before each gap."""
        visits = self._visits
        gaps = visits.gaps[before]
        if visits.began_cell[before] == NONE:
            return gaps
        kind = ending_of(visits.cell[before])
        mean_s = mean_gap_s((gaps or {}).get(kind, 0.0), now - visits.at_s[before])
        return {**(gaps or {}), kind: mean_s}

    def _assign(self, visit: int, keys: Sequence[bytes], rows: list[int | None]) -> bytes | None:
        """Give a visit the rows that DRAM has of a chain; returns the first key that DRAM lacks."""
        held = [row for row in rows if row is not None]
        count = len(held)
        if held == rows[:count] and self._forest.is_path(held):
            self._assign_path(visit, held)
            return keys[count] if count < len(rows) else None
        return self._assign_parts(visit, keys, rows)

    def _assign_path(self, visit: int, rows: list[int]) -> None:
        """Give a visit a path from a root on: thousands of chunks, but few earlier visits."""
        visit_of, tail = self._forest.visit, self._visits.tail
        earlier = set(map(visit_of.__getitem__, rows))
        for row in rows:
            visit_of[row] = visit
        for before in earlier:
            if tail[before] != NONE and visit_of[tail[before]] == visit:
                tail[before] = NONE
                self._emptied(before)
        if rows:
            tail[visit] = rows[-1]
            self._enqueue(visit)

    def _assign_parts(
        self, visit: int, keys: Sequence[bytes], rows: list[int | None]
    ) -> bytes | None:
        """As `_assign`, where chunks are missing in between: each part gets a visit of its own."""
        visit_of, tail = self._forest.visit, self._visits.tail
        owner, below, lacking = visit, NONE, None
        tails: list[int] = []
        for key, row in zip(reversed(keys[: len(rows)]), reversed(rows), strict=True):
            if row is None:
                lacking = key
                continue
            if tails and self._forest.parent[below] != row:
                owner = self._unwatched_copy(visit)  # the part above a hole leaves on its own
            before, visit_of[row] = visit_of[row], owner
            if owner not in tails:
                tails.append(owner)
                deepest = row
            if tail[before] == row:
                tail[before] = NONE
                self._emptied(before)
            if tail[owner] == NONE:
                tail[owner] = deepest
            below = row
        for owner in tails:
            self._enqueue(owner)
        return lacking

    def _unwatched_copy(self, visit: int) -> int:
        """A new visit of the same kind and age, which is not watched."""
        visits = self._visits
        other = visits.begin(visits.cell[visit], None, visits.at_s[visit])
        visits.turns[other], visits.mean_s[other] = visits.turns[visit], visits.mean_s[visit]
        visits.copy_dialog(visit, other)
        return other

    def _relative_depth(self, depth: int) -> float:
        """The relative length of a first prompt, which stands for its share of new tokens.

        All of a first prompt is new; how long it is, compared with what is usual, tells more.
        """
        self._usual_depth += (depth - self._usual_depth) / min(self._requests, USUAL_REQUESTS)
        return 0.2 * depth / self._usual_depth

    def _end(self, visit: int) -> None:
        """Stop watching a visit; it lives on only while it holds chunks."""
        end = self._visits.end[visit]
        self._to_read.forget(visit)
        if end is not None:
            del self._ends[end]
            self._visits.end[visit] = None
            if self._visits.rank[visit] == KEPT:  # nothing would end that any more
                self._set_rank(visit, USUAL)
        if self._visits.tail[visit] == NONE:
            self._forget(visit)

    def _forget(self, visit: int) -> None:
        self._started(visit, self._visits.start[visit])
        self._visits.forget(visit)

    def _started(self, visit: int, key: bytes | None) -> None:
        """Forget the key at which a visit's stores begin, if that is `key`."""
        if key is not None and self._starts.get(key) == visit:
            del self._starts[key]
            self._visits.start[visit] = None

    def _emptied(self, visit: int) -> None:
        """A visit holds no chunk any more; a watched one is remembered until it returns."""
        if self._visits.end[visit] is None:
            self._forget(visit)
        else:
            self._visits.move(visit, NOT_EVICTABLE)

    def _joined(self, key: bytes, above: int, now: float, ahead_of: int) -> int:
        """The visit of a new chunk: the one that it continues, or a new one like that."""
        if ahead_of != NONE:
            is_next = self._visits.tail[ahead_of] in (NONE, above)
            return ahead_of if is_next else self._unwatched_copy(ahead_of)
        visits, forest = self._visits, self._forest
        visit = self._starts.get(key, NONE)
        if visit == NONE and above != NONE:
            visit = forest.visit[above]
        if visit == NONE:
            return visits.begin(cell_of(0, 0.0, 1.0), None, now)
        if visits.tail[visit] == above:  # both NONE: DRAM had nothing of the chain
            return visit
        cell = visits.cell[visit]
        copy = visits.begin(cell - cell % BINS, None, now)
        visits.copy_dialog(visit, copy)
        return copy

    def _make_tail(self, row: int) -> None:
        """A chunk has no child any more, so it is its visit's tail."""
        visits, visit = self._visits, self._forest.visit[row]
        if visits.tail[visit] not in (NONE, row):
            visit = self._split_off(row, visit)
        visits.tail[visit] = row
        self._enqueue(visit)

    def _split_off(self, row: int, visit: int) -> int:
        """A damaged chunk left a hole in a path: the chunks above it get a visit of their own."""
        forest, part = self._forest, self._unwatched_copy(visit)
        while row != NONE and forest.visit[row] == visit:
            forest.visit[row] = part
            row = forest.parent[row]
        return part

    def _enqueue(self, visit: int) -> None:
        """Put a visit into the eviction queue for its tail's size class and safety."""
        forest, row = self._forest, self._visits.tail[visit]
        if forest.children[row] or forest.pins[row]:
            self._visits.move(visit, NOT_EVICTABLE)
            return
        place = forest.size_class[row] * SAFETIES + forest.safety[row]
        self._visits.move(visit, EVICTABLE + place * RANKS + self._visits.rank[visit])

    def _size_class(self, slot_bytes: int) -> int:
        number = self._size_classes.get(slot_bytes)
        if number is None:
            number = self._size_classes[slot_bytes] = len(self._forest.slot_bytes)
            self._forest.slot_bytes.append(slot_bytes)
            self._visits.add_queues(EVICTABLE + (number + 1) * SAFETIES * RANKS)
        return number

    def _least_to_lose(self, slot_bytes: int) -> tuple[int, int]:
        """As `_least`, for a chunk that nobody has asked for: unwritten chunks stay."""
        return self._least(slot_bytes, spare_unwritten=self._can_write)

    def _least(self, slot_bytes: int, *, spare_unwritten: bool) -> tuple[int, int]:
        """The least valuable visit that has a chunk of this slot size to give, and its level."""
        visit, least = NONE, 0
        number = self._size_classes.get(slot_bytes)
        if number is None:
            return visit, least
        for safety in range(SAFETIES):
            if safety == PENDING and spare_unwritten:
                continue
            for rank in self._ranks:
                found = self._visits.least(EVICTABLE + (number * SAFETIES + safety) * RANKS + rank)
                if found is None:
                    continue
                level = found[1] + RANK_LEVELS[rank]
                level -= SAVED_LEVELS if safety == SAVED else 0
                if visit == NONE or level < least:
                    visit, least = found[0], level
        return visit, least
