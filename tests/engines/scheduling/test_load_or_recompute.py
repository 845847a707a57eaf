"""Load or recompute: whichever brings a token first, with both queues in view."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.scheduling.load_or_recompute import (
    OtherWork,
    ThroughputEstimate,
    fetching_ms,
    least_read,
    worth_fetching,
    worth_reading,
)
from forebay.pool.messages import StoreRun
from forebay.pool.policy.ahead import is_read_ahead
from forebay.tiers.contract import TierSpeed

TOKEN = 147_456
ALONE = OtherWork()


def estimate(tokens_a_s: float, bytes_a_s: float, reading_bytes: int = 0) -> ThroughputEstimate:
    """As seen after a while."""
    found = ThroughputEstimate()
    found.built(0.0, 1, 4096)
    found.reported(4096 / tokens_a_s, 1)
    found.reads(0.0, 1, 1 << 30)
    found.arrived(max(0.25, (1 << 30) / bytes_a_s), 1, 1 << 30)
    if reading_bytes:
        found.reads(1.0, 2, reading_bytes)
    return found


def test_what_is_not_known_is_tried_by_one_at_a_time() -> None:
    new = ThroughputEstimate()
    assert worth_reading(1000, TOKEN, ALONE, new, 1.0) == 1000
    new.reads(1.0, 1, 1000 * TOKEN)
    assert worth_reading(1000, TOKEN, ALONE, new, 1.1) == 0
    new.arrived(1.02, 1, 1000 * TOKEN)
    assert worth_reading(1000, TOKEN, ALONE, new, 1.3) == 1000, "that was too short to say much"


def test_a_long_prompt_is_not_staked_on_drives_that_may_be_slow() -> None:
    new = ThroughputEstimate()
    assert worth_reading(32_000, TOKEN, ALONE, new, 1.0) * TOKEN == pytest.approx(1 << 28, rel=0.01)
    assert worth_reading(32_000, 1 << 20, ALONE, new, 1.0) == 1024, "enough to say something"
    assert worth_reading(100, 1 << 20, ALONE, new, 1.0) == 100
    assert worth_reading(32_000, TOKEN, ALONE, new, 1.0, least=4096) == 4096, "less is not asked"
    assert worth_reading(32_000, TOKEN, OtherWork(1, 0), new, 1.0) == 32_000, "the GPU is busy"
    assert worth_reading(32_000, TOKEN, OtherWork(0, 1), new, 1.0) == 32_000
    new.reads(1.0, 1, 1 << 28)
    new.arrived(1.1, 1, 1 << 28)
    assert new.read_bytes_a_s == pytest.approx(10 << 28), "and that has said it"


def test_what_is_tried_is_enough_to_be_asked_for() -> None:
    assert least_read(0, 4096, 256) == 4096
    assert least_read(0, 4000, 256) == 4096
    assert least_read(1000, 4096, 256) == 3328, "with what lies in DRAM"
    assert least_read(8192, 4096, 256) == 256, "some of it has to be read"
    assert least_read(-100, 256, 4096) == 4096, "what is computed ends within a chunk"


def test_what_was_seen_long_ago_is_believed_if_it_speaks_for_the_drives() -> None:
    fast, slow = estimate(20_000, 4e9), estimate(30_000, 1e9)
    assert worth_reading(32_000, TOKEN, ALONE, fast, 100.0) == 32_000
    assert worth_reading(1000, TOKEN, ALONE, slow, 2.0) == 0
    assert worth_reading(1000, TOKEN, ALONE, slow, 100.0) == 1000, "else it is tried anew"
    slow.reads(100.0, 7, 1 << 28)
    assert worth_reading(1000, TOKEN, ALONE, slow, 100.0) == 0, "by one"
    assert worth_reading(32_000, TOKEN, OtherWork(0, 9), slow, 100.0) == 0, "whatever it says"
    slow.arrived(100.1, 7, 1 << 28)
    assert slow.read_bytes_a_s == pytest.approx(10 << 28), "and what is old is forgotten"


def test_a_request_that_is_aborted_says_nothing_about_the_drives() -> None:
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 28)
    found.forget(5.0, 1)
    found.reads(3600.0, 2, 1 << 28)
    found.arrived(3600.1, 2, 1 << 28)
    assert found.read_bytes_a_s == pytest.approx(10 << 28)


def the_first_of_two() -> ThroughputEstimate:
    """Of two promises of 1 GiB the first was heard after a second."""
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 30)
    found.reads(0.0, 2, 1 << 30)
    found.arrived(1.0, 1, 1 << 30)
    return found


def test_what_is_left_of_a_longer_time_counts_while_that_is_fresh() -> None:
    found = the_first_of_two()
    found.arrived(1.2, 2, 1 << 30)
    found.reads(2.0, 3, 1 << 30)
    found.arrived(2.1, 3, 1 << 30)
    assert found.read_bytes_a_s > 2 << 30


def test_where_it_was_forgotten_a_short_try_counts() -> None:
    found = the_first_of_two()
    found.arrived(1.06, 2, 1 << 30)
    found.reads(100.0, 3, 1 << 28)
    found.arrived(100.1, 3, 1 << 28)
    assert found.read_bytes_a_s == pytest.approx(10 << 28)


def test_what_becomes_old_while_it_is_read_is_no_try() -> None:
    found = the_first_of_two()
    found.arrived(1.1, 2, 1 << 30)
    found.reads(60.95, 3, 1 << 30)
    found.arrived(61.03, 3, 1 << 30)
    assert found.read_bytes_a_s == pytest.approx(1 << 30)


def test_a_part_of_a_try_and_one_of_no_time_say_nothing() -> None:
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 30)
    found.arrived(0.06, 1, 1 << 29)
    assert found.read_bytes_a_s == 0
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 28)
    found.arrived(0.02, 1, 1 << 28)
    assert found.read_bytes_a_s == 0


def test_a_short_read_says_nothing_where_something_fresh_is_known() -> None:
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 30)
    found.arrived(1.0, 1, 1 << 30)
    found.reads(2.0, 2, 1 << 28)
    found.arrived(2.06, 2, 1 << 28)
    assert found.read_bytes_a_s == pytest.approx(1 << 30)


def test_what_is_left_of_a_longer_time_is_not_a_whole_one() -> None:
    """The second promise was read all the while, not in the 60 ms since the first was heard."""
    found = the_first_of_two()
    found.arrived(1.06, 2, 1 << 30)
    assert found.read_bytes_a_s == pytest.approx(1 << 30)
    found.reads(100.0, 3, 1 << 30)  # what came a minute ago does not count with this
    found.arrived(101.0, 3, 1 << 30)
    assert found.read_bytes_a_s == pytest.approx(1 << 30)


def test_idle_drives_are_asked_when_they_are_faster_than_the_gpu() -> None:
    assert worth_reading(32_000, TOKEN, ALONE, estimate(20_000, 4e9), 1.0) == 32_000
    assert worth_reading(32_000, TOKEN, ALONE, estimate(30_000, 3.5e9), 1.0) == 0


def test_a_busy_gpu_leaves_time_for_slower_drives() -> None:
    """25k tokens per second from the drives, 30k from the GPU, which has a second of work."""
    found = worth_reading(
        1_000_000, TOKEN, OtherWork(30_000, 0), estimate(30_000, 25_000 * TOKEN), 2.0
    )
    assert found == pytest.approx(75_000, rel=0.01), "in three seconds; the GPU takes half longer"
    assert (
        worth_reading(5000, TOKEN, OtherWork(30_000, 0), estimate(30_000, 25_000 * TOKEN), 2.0)
        == 5000
    )


def test_a_crowd_would_be_held_up_by_what_is_computed() -> None:
    """11k tokens per second from the drives, 30k from the GPU: three times as long, for one."""
    slow = estimate(30_000, 11_000 * TOKEN)
    found = [worth_reading(3000, TOKEN, OtherWork(0, others), slow, 2.0) for others in (0, 1, 2, 9)]
    assert found == [0, 0, 3000, 3000]
    queue = estimate(30_000, 11_000 * TOKEN, reading_bytes=6000 * TOKEN)
    found = [worth_reading(3000, TOKEN, OtherWork(0, others), queue, 2.0) for others in (7, 8)]
    assert found == [0, 3000], "it takes 0.82 s, and 0.78 or 0.88 s of theirs"


def test_drives_that_seem_a_little_sooner_are_not_waited_for() -> None:
    assert worth_reading(32_000, TOKEN, ALONE, estimate(20_000, 24_000 * TOKEN), 2.0) == 0
    assert worth_reading(32_000, TOKEN, ALONE, estimate(20_000, 26_000 * TOKEN), 2.0) == 32_000
    crowd = OtherWork(0, 1)
    assert worth_reading(32_000, TOKEN, crowd, estimate(20_000, 12_000 * TOKEN), 2.0) == 32_000


def test_a_long_queue_at_the_drives_is_not_joined() -> None:
    fast = 4e9
    assert (
        worth_reading(5000, TOKEN, ALONE, estimate(20_000, fast, reading_bytes=int(fast)), 1.0) == 0
    )
    assert (
        worth_reading(
            5000, TOKEN, OtherWork(20_000, 0), estimate(20_000, fast, int(fast) // 2), 1.0
        )
        == 5000
    )


def test_speed_is_seen_step_by_step_also_when_two_are_on_their_way() -> None:
    found = ThroughputEstimate()
    found.built(0.0, 1, 8192)
    found.built(0.001, 2, 8192)
    assert found.computing(0.002) == 2 * 8192, "how fast is not known"
    found.reported(0.25, 1)
    assert found.computing(0.25) == 8192
    assert found.computing(0.375) == pytest.approx(4096, abs=1)
    found.reported(0.50, 2)
    assert found.computing(0.50) == 0
    assert found.tokens_a_s == pytest.approx(8192 / 0.25, rel=0.01)
    found.built(10.0, 3, 20)  # after a pause, and a small one: says nothing
    found.reported(10.01, 3)
    assert found.tokens_a_s == pytest.approx(8192 / 0.25, rel=0.01)


def test_an_engine_that_does_not_tell_is_not_believed() -> None:
    found = ThroughputEstimate()
    for step in range(100):
        found.built(step * 1.0, step, 4096)
    assert found.tokens_a_s == 0


def test_steps_that_nobody_hears_of_do_not_shift_the_others() -> None:
    """vLLM is silent about a step that computes nothing and has nothing to report."""
    found = ThroughputEstimate()
    for number in range(0, 40, 4):
        begun = number * 0.3
        found.built(begun, number, 0)
        found.built(begun + 0.01, number + 1, 8192)
        found.built(begun + 0.02, number + 2, 11)
        found.built(begun + 0.02, number + 3, 0)
        found.reported(begun + 0.26, number + 1)
        found.reported(begun + 0.27, number + 2)
    assert found.tokens_a_s == pytest.approx(8192 / 0.25, rel=0.01)


def test_what_the_gpu_has_in_hand_does_not_count_from_an_empty_step() -> None:
    found = ThroughputEstimate()
    found.built(0.0, 1, 8192)
    found.reported(0.16, 1)
    found.built(0.17, 2, 0)
    found.built(1.0, 3, 8192)
    assert found.computing(1.0) == 8192


def test_an_engine_of_small_steps_is_no_reason_to_read_one_after_the_other() -> None:
    found, now = ThroughputEstimate(), 0.0
    for number in range(100):
        found.built(now, number, 512)
        now += 0.05
        found.reported(now, number)
    found.reads(now, 1, 1 << 30)
    found.arrived(now + 1, 1, 1 << 29)
    assert found.tokens_a_s == 0, "they say how long a step takes, not how fast it goes"
    assert worth_reading(1000, TOKEN, ALONE, found, now + 1) == 1000


def test_what_comes_in_one_lump_says_nothing_about_the_drives() -> None:
    """Two promises heard in one step; the second is not read in the millisecond between them."""
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 30)
    found.reads(0.0, 2, 1 << 30)
    found.arrived(1.0, 1, 1 << 30)
    found.arrived(1.001, 2, 1 << 30)
    assert found.read_bytes_a_s == pytest.approx(1 << 30, rel=0.01)
    found.reads(2.0, 3, 1 << 30)
    found.arrived(3.0, 3, 1 << 30)
    assert found.read_bytes_a_s < 1.5 * (1 << 30)


def test_short_reads_add_up_and_pauses_between_them_do_not_count() -> None:
    found = ThroughputEstimate()
    for number in range(10):
        found.reads(float(number), number, 30 << 20)
        found.arrived(number + 0.03, number, 30 << 20)
    assert found.read_bytes_a_s == pytest.approx(1000 << 20, rel=0.01)


def test_bandwidth_is_of_all_reads_together() -> None:
    found = ThroughputEstimate()
    found.reads(0.0, 1, 1 << 30)
    found.reads(0.0, 2, 1 << 30)
    found.arrived(0.5, 1, 1 << 30)
    assert found.reading_bytes == 1 << 30
    found.arrived(1.0, 2, 1 << 30)
    assert found.read_bytes_a_s == pytest.approx(2 << 30, rel=0.01)
    found.arrived(2.0, 2, 1 << 30)  # from DRAM, or counted already
    assert found.reading_bytes == 0
    found.reads(3.0, 3, 1 << 30)
    found.forget(3.5, 3)
    assert found.reading_bytes == 0


@given(
    st.integers(0, 200_000),
    st.integers(0, 200_000),
    st.floats(1e3, 1e5),
    st.floats(1e8, 1e11),
    st.integers(0, 1 << 34),
)
def test_what_is_read_is_there_before_it_would_have_been_computed(
    tokens: int, waiting: int, speed: float, bandwidth: float, reading: int
) -> None:
    seen = estimate(speed, bandwidth, reading)
    found = worth_reading(tokens, TOKEN, OtherWork(waiting, 0), seen, 2.0)
    assert 0 <= found <= tokens
    if found and seen.read_bytes_a_s:
        read_s = (reading + found * TOKEN) / seen.read_bytes_a_s
        assert read_s <= (waiting + found) / seen.tokens_a_s + 1e-6


# Of Qwen3-8B: 147 kB a token, 38,000 tokens a second on one H200.
GPU = 38_000.0
NETWORK = 0.9 * 12.5e9  # 100 Gbit/s


def fetched(tokens: int, first_ms: float, others: OtherWork = ALONE, gbit: float = 100) -> int:
    store = StoreRun(0, 1, first_ms, 0.9 * gbit * 1e9 / 8)
    return worth_fetching(tokens, TOKEN, others, store, GPU, is_tried=False)


@pytest.mark.parametrize(("first_ms", "pays_from"), [(150, 18_800), (10, 1250), (1, 125)])
def test_a_store_pays_from_a_length_that_its_first_byte_decides(
    first_ms: float, pays_from: int
) -> None:
    assert fetched(int(0.97 * pays_from), first_ms) == 0
    assert fetched(int(1.03 * pays_from), first_ms) == int(1.03 * pays_from)


def test_a_slow_network_pays_only_while_the_gpu_is_busy() -> None:
    assert fetched(100_000, 10, gbit=10) == 0
    assert fetched(10_000, 10, OtherWork(0, 5), gbit=10) == 10_000, "all others gain by it"
    queued = fetched(100_000, 10, OtherWork(50_000, 0), gbit=10)
    assert 0 < queued < 100_000, "as much as comes while the GPU is busy with others"


def test_a_store_of_unknown_speed_is_tried_by_one_at_a_time() -> None:
    new = StoreRun(0, 1, 0.0, 0.0)
    assert worth_fetching(32_000, TOKEN, ALONE, new, GPU, is_tried=True) == 0
    tried = worth_fetching(32_000, TOKEN, ALONE, new, GPU, is_tried=False)
    assert tried * TOKEN == pytest.approx(1 << 28, rel=0.01), "a part of it"
    assert worth_fetching(32_000, TOKEN, OtherWork(1, 1), new, GPU, is_tried=False) == 32_000
    silent = StoreRun(0, 1, 600.0, 0.0)
    assert worth_fetching(32_000, TOKEN, ALONE, silent, GPU, is_tried=False) == 0


def test_a_store_is_waited_for_a_few_times_as_long_as_it_should_take() -> None:
    assert fetching_ms(10**9, StoreRun(0, 1, 100.0, 1e10), 2000.0) == pytest.approx(800.0)
    assert fetching_ms(10**6, StoreRun(0, 1, 1.0, 1e10), 2000.0) == 250.0, "an eighth at least"
    assert fetching_ms(10**9, StoreRun(0, 1, 900.0, 1e10), 2000.0) == 2000.0
    assert fetching_ms(10**9, StoreRun(0, 1, 0.0, 0.0), 2000.0) == 2000.0, "its speed is not known"


def test_where_the_gpu_was_never_seen_a_store_is_used() -> None:
    store = StoreRun(0, 1, 1000.0, 1e6)
    assert worth_fetching(1000, TOKEN, ALONE, store, 0.0, is_tried=True) == 1000


@pytest.mark.parametrize("gpu_bytes_a_s", [0.0, 1e9])
def test_what_is_not_known_to_be_slower_is_read_ahead(gpu_bytes_a_s: float) -> None:
    assert is_read_ahead(1 << 20, TierSpeed(9.0, 0.0), gpu_bytes_a_s)


def test_what_is_slower_than_an_idle_gpu_is_not_read_ahead() -> None:
    gpu_bytes_a_s = GPU * TOKEN
    assert is_read_ahead(13_000 * TOKEN, TierSpeed(0.15, NETWORK), gpu_bytes_a_s)
    assert not is_read_ahead(10_000 * TOKEN, TierSpeed(0.15, NETWORK), gpu_bytes_a_s)
    assert not is_read_ahead(1 << 40, TierSpeed(0.0, 1e9), gpu_bytes_a_s)
