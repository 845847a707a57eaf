"""The model of reading ahead: what it counts, and that knowing when dialogs return is worth it."""

import random

from tools.prefetch_bounds import CHUNK_BYTES, Counts, Known, Model, Point

from forebay.identity.endings import EndingClass
from forebay.pool.policy.contract import Ending
from forebay.sim.trace import Request

DEPTH = 10
FAST = float(CHUNK_BYTES * 1000)  # bytes a second: a thousand chunks
GAP_S = 100.0


def dialog(number: int, depth: int = DEPTH) -> list[bytes]:
    return [(number << 16 | at).to_bytes(16, "big") for at in range(depth)]


def in_turn(rounds: int) -> list[Request]:
    """Two dialogs that alternate, each as large as DRAM."""
    ending = Ending(EndingClass.TOOL_CALL, duration_s=1.0)
    chains = [dialog(0), dialog(1)]
    return [Request(at * GAP_S, chains[at % 2], 512, ending) for at in range(2 * rounds)]


def counted(
    known: Known, chance_min: float | None, requests: list[Request], bytes_a_s: float = FAST
) -> Counts:
    return Model(Point(known, DEPTH, bytes_a_s, chance_min), requests).run()


def test_who_knows_when_dialogs_return_has_them_all_in_dram() -> None:
    requests = in_turn(10)
    alone, ahead = (counted(Known.TIMES, chance, requests) for chance in (None, 0.7))
    assert alone.asked == ahead.asked == 18 * DEPTH
    assert alone.in_dram < ahead.in_dram == ahead.asked
    assert (alone.made, ahead.wasted, alone.late) == (0, 0, 0)
    assert 0 < ahead.made <= ahead.in_dram


def test_callers_who_say_when_they_return_are_believed_once_they_were_right() -> None:
    requests = in_turn(60)
    alone, ahead = (counted(Known.HINTS, chance, requests) for chance in (None, 0.5))
    assert ahead.in_dram > alone.in_dram
    assert ahead.wasted < 0.3 * ahead.made


def test_a_drive_without_time_to_spare_reads_nothing_ahead() -> None:
    slow = DEPTH * CHUNK_BYTES / (2 * GAP_S)  # what is asked for takes longer than the gaps
    counts = counted(Known.TIMES, 0.7, in_turn(10), slow)
    assert counts.made == 0
    assert counts.late == counts.asked


def test_what_is_too_unlikely_is_not_read() -> None:
    assert counted(Known.ENDINGS, 1.1, in_turn(10)).made == 0


def test_nothing_is_counted_twice() -> None:
    draw, chains, at_s = random.Random(7), [dialog(each, 4) for each in range(12)], 0.0
    requests = []
    for number in range(400):
        each = draw.randrange(12)
        at_s += draw.expovariate(0.5)
        kind = draw.choice((EndingClass.TOOL_CALL, EndingClass.STOP))
        requests.append(Request(at_s, chains[each], 4 * 512, Ending(kind, duration_s=0.5)))
        if number % 10 == 9:  # the dialog goes on another way
            chains[each] = chains[each][:2] + dialog(1000 + number, 6)
    for known in Known:
        counts = counted(known, 0.0, requests)
        assert 0 < counts.in_dram <= counts.asked
        assert 0 <= counts.wasted <= counts.made
        assert counts.made > 0
