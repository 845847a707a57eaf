"""Measure the policy's bars on the public traces: `make sim TRACES=DIR`.

* Curves: agent sessions (prompts up to 128k tokens) with 16, 32 and 64 users and 0.3 to 4M tokens
  of DRAM, conversations with 1, 2 and 5M; LRU, ours and the optimum. Constants: from half 0.
* Two tiers, and reading ahead from a drive: all agent sessions and all conversations.
* What each signal of an answer's end is worth (`--ladder`): the same policy on agent sessions of
  which it is told less, or on which more is told by giving each case a class of its own.
"""

import argparse
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from forebay.identity.endings import MARKER_FIRST, SESSION_BYTES, EndingClass
from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.contract import Ending
from forebay.pool.policy.learned import Learned
from forebay.settings import PrefetchMode
from forebay.sim.replay import SimResult, Sizes, simulate
from forebay.sim.timed import simulate_timed, with_hints
from forebay.sim.trace import (
    CHUNK_TOKENS,
    Request,
    TracedAnswer,
    capped,
    read_trace,
    schedule,
    turns,
)

AGENT_M = (0.3, 0.6, 1.0, 2.0, 4.0)
CONVERSATION_M = (1.0, 2.0, 5.0)
USERS = (16, 32, 64)
PROMPT_TOKENS_MAX = 131_072
GAP_MAX_S = 300.0
SHARE_MIN = {None: 0.45, GAP_MAX_S: 0.55}  # of the way from LRU to the optimum
BELOW_LRU_MAX = 0.003  # at any point, and below the better of LRU and ARC in two tiers
TIERS_M = ((0.5, 5.0), (2.0, 10.0))
DRIVE_BYTES_A_S, HINT_ERROR = 14e9, 0.2
MORE_IN_DRAM_MIN, WASTED_MAX = 0.1, 0.3
AHEAD_USERS = 32
LADDER_USERS, LADDER_M = 32, (0.3, 0.6, 1.0)
LENGTHS, DURATIONS_S = (100, 400), (4.0, 10.0)  # where cases of one ending are told apart
Told = Callable[[Ending, TracedAnswer, int], Ending | None]  # what is told of a session's answer


def chunks(million: float) -> int:
    return int(million * 1e6 / CHUNK_TOKENS)


def points(
    folder: Path, half: int | None, gap_max_s: float | None
) -> Iterator[tuple[str, Sizes, list[Request]]]:
    agent = read_trace(folder / "agent_sessions.jsonl.xz", PROMPT_TOKENS_MAX)
    conversation = read_trace(folder / "conversation.jsonl.xz")
    if gap_max_s is not None:
        agent = capped(agent, gap_max_s)
    if half is not None:
        agent, conversation = agent.half(half), conversation.half(half)
    for users in USERS:
        requests = list(schedule(agent, users))
        for million in AGENT_M:
            yield f"agent {users} users {million}M", Sizes(chunks(million)), requests
    requests = list(schedule(conversation))
    for million in CONVERSATION_M:
        yield f"conversation {million}M", Sizes(chunks(million)), requests


def curves(folder: Path, half: int | None, gap_max_s: float | None) -> None:
    ours = room = 0.0
    worst, accesses, spent_s = 1.0, 0, 0.0
    for name, sizes, requests in points(folder, half, gap_max_s):
        lru = simulate("lru", requests, sizes).hit_rate
        optimum = simulate("optimum", requests, sizes).hit_rate
        began = time.process_time()
        rate = simulate("forebay", requests, sizes).hit_rate
        spent_s += time.process_time() - began
        accesses += sum(len(request.keys) for request in requests)
        ours, room, worst = ours + rate - lru, room + optimum - lru, min(worst, rate - lru)
        print(f"  {name:24} LRU {lru:.3f}  forebay {rate:.3f}  optimum {optimum:.3f}", flush=True)
    print(f"  sum of (ours - LRU) {ours:.3f}, of (optimum - LRU) {room:.3f}: {ours / room:.3f}")
    verdict("share of the way from LRU to the optimum", ours / room, SHARE_MIN[gap_max_s])
    print(f"  worst point against LRU: {100 * worst:+.2f} points")
    verdict("worst point against LRU", worst, -BELOW_LRU_MAX)
    print(f"  forebay: {accesses / spent_s * 60 / 1e6:.0f}M chunk accesses a minute of CPU")


def loops() -> None:
    chain = [[(d << 8 | i).to_bytes(16, "big") for i in range(10)] for d in range(150)]
    for dialogs, sizes in ((150, Sizes(1000)), (140, Sizes(100, (1000,)))):
        requests = [Request(float(n), chain[n % dialogs], 5120) for n in range(10 * dialogs)]
        for policy in ("forebay", "lru", "fifo", "optimum"):
            show(f"loop {dialogs * 10} chunks, 10 rounds", sizes, simulate(policy, requests, sizes))


def verdict(what: str, found: float, least: float) -> None:
    """Whether a bar is reached."""
    word = "reached" if found >= least else "MISSED"
    print(f"  bar: {what} {found:.4f}, at least {least:.4f}: {word}", flush=True)


def two_tiers(folder: Path) -> None:
    """All sessions at once: no worse than LRU and ARC in both tiers, and nothing more written."""
    for file in ("agent_sessions", "conversation"):
        requests = list(schedule(read_trace(folder / f"{file}.jsonl.xz")))
        for dram_m, disk_m in TIERS_M:
            sizes = Sizes(chunks(dram_m), (chunks(disk_m),))
            name = f"{file} {dram_m}M + {disk_m}M"
            found = {each: simulate(each, requests, sizes) for each in ("lru", "arc", "forebay")}
            for result in found.values():
                show(name, sizes, result)
            ours = found.pop("forebay")
            best = max(result.hit_rate for result in found.values())
            verdict("hit rate", ours.hit_rate, best - BELOW_LRU_MAX)
            least = min(result.written_bytes for result in found.values())
            verdict("written, less than theirs, TiB", (least - ours.written_bytes) / 2**40, 0.0)


def ahead(folder: Path) -> None:
    """Dialogs read ahead: hints from the future, those that return alone, or wrong ones as well."""
    agent = read_trace(folder / "agent_sessions.jsonl.xz")
    requests = list(schedule(agent, AHEAD_USERS))
    sizes = Sizes(chunks(TIERS_M[0][0]), (chunks(TIERS_M[0][1]),))
    off = simulate_timed(requests, sizes, DRIVE_BYTES_A_S, PrefetchMode.OFF)
    print(f"  off: {off.dram_share:.3f} of what is found lies in DRAM", flush=True)
    for name, wrong_share in (("who does not return says nothing", 0.0), ("says as others", 1.0)):
        hinted = with_hints(requests, HINT_ERROR, wrong_share=wrong_share)
        found = simulate_timed(hinted, sizes, DRIVE_BYTES_A_S, PrefetchMode.HINTS)
        wasted = found.reads.wasted_share
        print(
            f"  hints, {name}: {found.dram_share:.3f}, {found.reads.made} read, {wasted:.3f} wasted"
        )
        verdict("more of it in DRAM", found.dram_share - off.dram_share, MORE_IN_DRAM_MIN)
        verdict("not wasted", 1 - wasted, 1 - WASTED_MAX)


def split(ending: Ending, case: int) -> Ending:
    """The same ending with a class of its own for this case of it."""
    return ending._replace(kind=MARKER_FIRST + 4 * min(ending.kind, EndingClass.OTHER) + case)


LADDER: dict[str, Told] = {
    "keys and times alone": lambda *_: None,
    "when the answer ended": lambda ending, *_: ending._replace(kind=EndingClass.OTHER),
    "and why: this policy": lambda ending, *_: ending,
    "that, and how long the answer was": lambda ending, answer, _: split(
        ending, bisect_right(LENGTHS, answer.tokens)
    ),
    "that, and how long it took": lambda ending, answer, _: split(
        ending, bisect_right(DURATIONS_S, answer.duration_s)
    ),
    "that, and what the prompt followed": lambda ending, answer, _: split(
        ending, answer.after == EndingClass.TOOL_CALL
    ),
    "that, and which session it is of": lambda ending, _, session: ending._replace(
        session=session.to_bytes(SESSION_BYTES, "big")
    ),
    "that, and when it returns, off by a fifth": lambda ending, *_: ending,
}


def ladder(folder: Path, half: int | None) -> None:
    """What each signal is worth, on agent sessions."""
    base = read_trace(folder / "agent_sessions.jsonl.xz", PROMPT_TOKENS_MAX)
    base = base if half is None else base.half(half)
    for gap_max_s, gaps in ((None, "gaps as recorded"), (GAP_MAX_S, "gaps of at most 300 s")):
        trace = base if gap_max_s is None else capped(base, gap_max_s)
        served = list(turns(trace, LADDER_USERS))
        requests = [request for _, request in served]
        sizes = [Sizes(chunks(million)) for million in LADDER_M]
        lru, best = (
            [simulate(name, requests, each).hit_rate for each in sizes]
            for name in ("lru", "optimum")
        )
        print(f"  {LADDER_USERS} users, {LADDER_M} M of DRAM, {gaps}:", flush=True)
        for name, told in LADDER.items():
            heard = [
                request._replace(
                    ending=request.ending and told(request.ending, request.answer, session)
                )
                for session, request in served
            ]
            heard = with_hints(heard, HINT_ERROR) if "returns" in name else heard
            ours = [simulate("forebay", heard, each).hit_rate for each in sizes]
            share = (sum(ours) - sum(lru)) / (sum(best) - sum(lru))
            print(f"    {name:45} {share:.3f}", flush=True)


def writes(folder: Path) -> None:
    requests = list(schedule(read_trace(folder / "conversation.jsonl.xz")))
    sizes = Sizes(chunks(0.5), (chunks(5.0),))
    for policy in ("fifo", "s3fifo", "optimum"):
        show("conversation 0.5M + 5M", sizes, simulate(policy, requests, sizes))


def costs() -> None:
    """What a decision costs, and a chunk, with 100,000 chunks of 2,000 dialogs in DRAM."""
    tracemalloc.start()
    policy, now = Learned([LowerTier(1 << 40)]), 0.0
    keys = [[(d << 8 | i).to_bytes(16, "big") for i in range(50)] for d in range(2000)]
    before, _ = tracemalloc.get_traced_memory()
    for chain in keys:
        now += 0.05
        policy.requested(chain, 0, now)
        for above, key in zip([None, *chain], chain, strict=False):
            policy.stored(key, above, 1, now)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    spent: dict[str, list[int]] = {"declines": [], "victim": [], "removed": []}
    for _ in range(20_000):
        began = time.perf_counter_ns()
        policy.declines(keys[0][0], None, now, 1)
        asked = time.perf_counter_ns()
        victim = policy.victim(now, 1)
        found = time.perf_counter_ns()
        assert victim is not None
        policy.removed(victim)
        spent["declines"].append(asked - began)
        spent["victim"].append(found - asked)
        spent["removed"].append(time.perf_counter_ns() - found)
    medians = (f"{name} {sorted(all_ns)[10_000] / 1000:.1f} µs" for name, all_ns in spent.items())
    print(
        f"  medians: {', '.join(medians)}; {(after - before) / 1e5:.0f} bytes a chunk beside keys"
    )
    next_reads()


def next_reads() -> None:
    """What the choice of a chunk to read ahead costs, by whether something has to leave for it."""
    policy, now = Learned([LowerTier(1 << 40)], PrefetchMode.HINTS), 0.0
    chains = [[(d << 8 | i).to_bytes(16, "big") for i in range(50)] for d in range(240)]
    hinted, plain = Ending(EndingClass.STOP, returns_in_s=100.0), Ending(EndingClass.STOP)

    def serve(chain: list[bytes], ending: Ending) -> None:
        policy.requested(chain, 0, now)
        for above, key in zip([None, *chain], chain, strict=False):
            policy.stored(key, above, 1, now)
            policy.in_tiers(key, [0])
        policy.ended(chain[-1], ending, now)

    for number in range(400):  # what is said holds; what says nothing never returns
        serve(chains[number % 4], hinted)
        serve([(1 << 32 | number).to_bytes(16, "big")], plain)
        now += 100.0
    for chain in chains[40:]:
        serve(chain, plain)
    for chain in chains[:40]:
        serve(chain, hinted)
        for key in reversed(chain):
            policy.removed(key)
    now += 60.0
    for has_room in (True, False):
        spent: list[int] = []
        for _ in range(900):
            began = time.perf_counter_ns()
            found = policy.next_read(now, lambda _, room=has_room: room)  # type: ignore[misc]
            spent.append(time.perf_counter_ns() - began)
            assert found is not None
        median_us = sorted(spent)[len(spent) // 2] / 1000
        place = "there is room" if has_room else "something has to leave"
        print(f"  next_read {median_us:.1f} µs where {place}")


def show(name: str, sizes: Sizes, result: SimResult) -> None:
    written = result.written_bytes // sizes.chunk_bytes
    print(
        f"  {name}: {result.policy:8} DRAM {sizes.dram_chunks}, below {sizes.lower_chunks} chunks:"
        f" hit {result.hit_rate:.3f}, {written} chunks written",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--quick", action="store_true", help="the curves alone, capped gaps")
    parser.add_argument("--ladder", action="store_true", help="what each signal is worth, alone")
    parser.add_argument("--tiers", action="store_true", help="two tiers and reading ahead, alone")
    parser.add_argument("--costs", action="store_true", help="what a decision costs, alone")
    parsed = parser.parse_args()
    which = "all sessions" if parsed.half is None else f"half {parsed.half}"
    if parsed.ladder:
        print(f"what signals are worth, {which}:")
        ladder(parsed.folder, parsed.half)
    if parsed.tiers:
        tiers(parsed.folder)
    if parsed.costs:
        costs()
    if parsed.ladder or parsed.tiers or parsed.costs:
        return
    print(f"{which}, gaps of at most {GAP_MAX_S:.0f} s:")
    curves(parsed.folder, parsed.half, GAP_MAX_S)
    if not parsed.quick:
        print(f"{which}, gaps as recorded:")
        curves(parsed.folder, parsed.half, None)
        loops()
        writes(parsed.folder)
        tiers(parsed.folder)
        costs()


def tiers(folder: Path) -> None:
    print("two tiers, all sessions:")
    two_tiers(folder)
    print(f"a drive of {DRIVE_BYTES_A_S / 1e9:.0f} GB/s, {AHEAD_USERS} users, all agent sessions:")
    ahead(folder)


if __name__ == "__main__":
    main()
