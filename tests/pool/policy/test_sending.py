"""What is given to a store that is shared: what is asked for again, whole dialogs, long chains."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from forebay.pool.policy.admission import LowerTier
from forebay.pool.policy.learned import Learned

SLOT = 1 << 20
NEAR, STORE = 0, 1


def chain(label: str, chunks: int) -> list[bytes]:
    return [f"{label} {n}".encode().ljust(16) for n in range(chunks)]


def policy(long_bytes: int = 1 << 40, *, reused_only: bool = True) -> Learned:
    store = LowerTier(1 << 40, reused_only=reused_only, long_bytes=long_bytes)
    return Learned([LowerTier(1 << 40), store])


def store(learned: Learned, keys: Sequence[bytes], now: float, found: int = 0) -> None:
    """A request that finds so much of its chain, and stores the rest."""
    learned.requested(keys, found, now)
    for before, key in zip([None, *keys], keys, strict=False):
        learned.stored(key, before, SLOT, now)


def sent(learned: Learned, now: float, tier: int = STORE) -> list[bytes]:
    """What a tier is offered now; it takes all of it."""
    found = []
    while (key := learned.next_write(tier, now, idle=True)) is not None:
        found.append(key)
    for key in found:
        learned.in_tiers(key, {tier})
    return found


def test_what_was_seen_once_is_not_sent_though_drives_get_it() -> None:
    learned, keys = policy(), chain("once", 4)
    store(learned, keys, 1.0)
    assert sent(learned, 2.0) == []
    assert sent(learned, 2.0, NEAR) == keys


def test_all_is_sent_where_that_is_asked_for() -> None:
    learned, keys = policy(reused_only=False), chain("once", 4)
    store(learned, keys, 1.0)
    assert sent(learned, 2.0) == keys


def test_a_dialog_that_came_back_is_sent_whole_with_its_new_turn() -> None:
    learned, keys = policy(), chain("dialog", 6)
    store(learned, keys[:4], 1.0)
    assert sent(learned, 2.0) == []
    store(learned, keys, 3.0, found=4)
    assert sent(learned, 4.0) == keys, "the head first"


def test_of_dialogs_that_begin_alike_the_beginning_is_sent() -> None:
    learned, head = policy(), chain("system prompt", 3)
    for number in range(2):
        store(learned, [*head, *chain(f"user {number}", 3)], 1.0 + number, found=3 * number)
    assert sent(learned, 4.0) == head


@pytest.mark.parametrize(("chunks", "is_sent"), [(7, False), (8, True)])
def test_a_long_chain_is_sent_at_first_sight(chunks: int, *, is_sent: bool) -> None:
    learned, keys = policy(long_bytes=8 * SLOT), chain("long", chunks)
    store(learned, keys, 1.0)
    assert sent(learned, 2.0) == (keys if is_sent else [])


def test_what_came_from_a_drive_was_asked_for() -> None:
    learned, (key,) = policy(), chain("promoted", 1)
    learned.stored(key, None, SLOT, 1.0)
    learned.in_tiers(key, {NEAR})
    assert sent(learned, 2.0) == [key]


def test_what_was_written_to_a_drive_was_not_asked_for() -> None:
    learned, keys = policy(), chain("written", 2)
    store(learned, keys, 1.0)
    assert sent(learned, 2.0, NEAR) == keys
    assert sent(learned, 2.0) == []


def test_a_child_that_waits_in_front_of_its_parent_is_sent_behind_it() -> None:
    """The head was judged and left out; the rest was too young to be judged when it returned."""
    learned, keys = policy(), chain("half", 4)
    store(learned, keys[:2], 1.0)
    assert sent(learned, 2.0) == []
    for before, key in pairwise(keys[1:]):
        learned.stored(key, before, SLOT, 3.0)
    learned.requested(keys, 4, 4.0)
    assert sent(learned, 5.0) == keys


def test_nothing_is_offered_and_nobody_waits_while_a_store_takes_nothing() -> None:
    learned = Learned([LowerTier(1 << 40)])
    keys = chain("held", 3)
    learned.hold_writes(0, held=True)
    store(learned, keys, 1.0)
    assert learned.next_write(0, 2.0, idle=True) is None
    assert learned.queued_bytes == 0
    assert learned.victim(2.0, SLOT, spare_unwritten=True) == keys[-1]
    learned.removed(keys[-1])
    learned.hold_writes(0, held=False)
    assert sent(learned, 3.0, 0) == keys[:2], "what DRAM still has"


def test_what_could_not_be_written_is_offered_once_more() -> None:
    learned = Learned([LowerTier(1 << 40)])
    keys = chain("again", 3)
    store(learned, keys, 1.0)
    offered = [learned.next_write(0, 2.0, idle=True) for _ in keys]
    assert offered == keys
    for key in keys:
        learned.write_failed(key, 0)
        learned.write_again(key, 0, 3.0)
    assert sent(learned, 4.0, 0) == keys
    learned.write_again(keys[0], 0, 5.0)
    learned.write_again(b"nobody's", 0, 5.0)
    assert sent(learned, 6.0, 0) == [], "it is there"
