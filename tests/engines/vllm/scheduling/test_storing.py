"""What becomes of offers, whatever the pool answers and in whichever order."""

from collections import Counter
from types import SimpleNamespace

import pytest

from forebay.engines.vllm.pages import Geometry
from forebay.engines.vllm.scheduling.asking import Asking, Limits
from forebay.engines.vllm.scheduling.budget import ErrorBudget
from forebay.engines.vllm.scheduling.side import SchedulerSide
from forebay.engines.vllm.scheduling.storing import Storing
from forebay.engines.vllm.scheduling.tracked import Tracked
from forebay.identity.keys import ChainRoot
from forebay.pool.client.session import PoolSession
from forebay.pool.messages import Answer, Found, Reserved
from forebay.sys.clock import Clock

pytestmark = pytest.mark.vllm
SHAPE = Geometry(("layer",), page_bytes=4096, block_tokens=16, chunk_blocks=1)
ROOT = ChainRoot(b"n" * 32, SHAPE.chunk_tokens)


@pytest.fixture
def pool() -> PoolSession:
    """A member of a pool that hears nothing."""
    session = PoolSession("/nowhere", Clock(), maps_slab=False)
    session.generation = 1
    return session


@pytest.fixture
def tracked() -> Tracked:
    """A request of eight chunks that is being computed."""
    tokens = list(range(8 * SHAPE.chunk_tokens))
    request = SimpleNamespace(request_id="request", all_token_ids=tokens)
    tracked = Tracked(request, SHAPE, ROOT)
    tracked.blocks = list(range(8))
    tracked.extend()
    return tracked


def test_no_to_what_continues_a_chunk_without_a_slot_is_not_for_ever(
    pool: PoolSession, tracked: Tracked
) -> None:
    storing = Storing(pool, SHAPE, Counter())
    for computed in (4, 6):  # the second before the first is answered
        tracked.offered = computed
        storing.offer([tracked])
    storing.answered(Reserved(1, 1, [0, Answer.LATER, Answer.LATER, Answer.LATER]))
    storing.answered(Reserved(2, 1, [Answer.NO, Answer.NO]))
    assert tracked.wants_store, "the pool only does not know the chunk before"
    assert (tracked.stored, tracked.offered) == (1, 1)
    tracked.offered = 6
    storing.offer([tracked])
    storing.answered(Reserved(3, 1, [Answer.NO] * 5))
    assert not tracked.wants_store


def test_after_a_chunk_without_a_slot_few_are_offered_and_more_as_they_are_taken(
    pool: PoolSession,
) -> None:
    side = SchedulerSide(pool, SHAPE, Limits(16, 50, 50))
    tokens = list(range(400 * SHAPE.chunk_tokens))
    request = SimpleNamespace(request_id="request", all_token_ids=tokens)
    tracked = side._tracked["request"] = Tracked(request, SHAPE, ROOT)
    tracked.blocks = list(range(400))
    cached = SimpleNamespace(req_ids=["request"], num_computed_tokens=[len(tokens)])
    output = SimpleNamespace(
        scheduled_new_reqs=(), scheduled_cached_reqs=cached, num_scheduled_tokens={}
    )

    def offered() -> int:
        tracked.offer_at = 0.0  # a while later
        before = tracked.stored
        side._storing.offer(side._completed(output))
        return tracked.stored - before

    assert offered() == 400
    side._storing.answered(Reserved(1, 1, [Answer.LATER] * 400))
    assert offered() == 8
    assert offered() == 0, "what follows them is not offered before they are answered"
    side._storing.answered(Reserved(2, 1, [Answer.HAVE] * 6 + [0, Answer.LATER]))
    assert offered() == 8
    side._storing.answered(Reserved(3, 1, [Answer.HAVE] * 8))
    assert offered() == 400 - 15


def test_what_the_pool_has_lost_since_the_lookup_is_stored_again(
    pool: PoolSession, tracked: Tracked
) -> None:
    tracked.wants_load = True
    asking = Asking(
        pool, SHAPE, Limits(16, 5, 5), budget=ErrorBudget(), counts=Counter(), tracked={}
    )
    asking.look_up(tracked)
    asking.heard(Found(tracked.number, 6, 0))
    assert tracked.stored == 6
    asking.heard(Found(tracked.number, 2, 2))
    assert (tracked.stored, tracked.offered) == (2, 0)
