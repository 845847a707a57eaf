"""Measure the policy's bars on the public traces: `make sim TRACES=DIR`.

Points: agent sessions (prompts up to 128k tokens) with 16, 32 and 64 users and 0.3 to 4M tokens of
DRAM, conversations with 1, 2 and 5M; LRU, ours and the optimum. Constants were chosen on half 0.
"""

import argparse
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.learned import Learned
from forebay.sim.replay import SimResult, Sizes, simulate
from forebay.sim.trace import CHUNK_TOKENS, Request, capped, read_trace, schedule

AGENT_M = (0.3, 0.6, 1.0, 2.0, 4.0)
CONVERSATION_M = (1.0, 2.0, 5.0)
USERS = (16, 32, 64)
PROMPT_TOKENS_MAX = 131_072
GAP_MAX_S = 300.0


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
    print(f"  worst point against LRU: {100 * worst:+.2f} points")
    print(f"  forebay: {accesses / spent_s * 60 / 1e6:.0f}M chunk accesses a minute of CPU")


def loops() -> None:
    chain = [[(d << 8 | i).to_bytes(16, "big") for i in range(10)] for d in range(150)]
    for dialogs, sizes in ((150, Sizes(1000)), (140, Sizes(100, (1000,)))):
        requests = [Request(float(n), chain[n % dialogs], 5120) for n in range(10 * dialogs)]
        for policy in ("forebay", "lru", "fifo", "optimum"):
            show(f"loop {dialogs * 10} chunks, 10 rounds", sizes, simulate(policy, requests, sizes))


def writes(folder: Path) -> None:
    requests = list(schedule(read_trace(folder / "conversation.jsonl.xz")))
    sizes = Sizes(chunks(0.5), (chunks(5.0),))
    for policy in ("forebay", "fifo", "lru", "s3fifo", "arc", "optimum"):
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
    parsed = parser.parse_args()
    which = "all sessions" if parsed.half is None else f"half {parsed.half}"
    print(f"{which}, gaps of at most {GAP_MAX_S:.0f} s:")
    curves(parsed.folder, parsed.half, GAP_MAX_S)
    if not parsed.quick:
        print(f"{which}, gaps as recorded:")
        curves(parsed.folder, parsed.half, None)
        loops()
        writes(parsed.folder)
        costs()


if __name__ == "__main__":
    main()
