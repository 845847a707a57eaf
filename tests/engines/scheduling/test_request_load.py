"""The life of one request's load, transition by transition."""

import pytest

from forebay.engines.geometry import Geometry
from forebay.engines.groups import PrefixHit
from forebay.engines.scheduling.request_load import (
    ASKED,
    FAILED,
    FOUND,
    LOADING,
    NONE,
    PROMISED,
    TOLD,
    LoadProgress,
    LoadTarget,
    RequestLoad,
)
from forebay.pool.messages import Found, Promise

SHAPE = Geometry(("layer",), page_bytes=4096, block_tokens=16, chunk_blocks=1)
HIT = PrefixHit(2)
PROMISE = Promise(1, 7, 0, 2, [0, 4096], [4096, 4096], b"")


def promised() -> RequestLoad:
    load = RequestLoad(is_wanted=True)
    load.look_up(1, 0.0)
    load.take_found(Found(1, 2, 2), HIT)
    load.ask(0, HIT, (), 0.0)
    load.take_promise(PROMISE)
    assert load.state is PROMISED
    return load


def begun() -> RequestLoad:
    load = promised()
    load.begin(LoadProgress(PROMISE, LoadTarget(SHAPE, HIT, [[5, 6]], 0, 32), 30.0))
    assert load.state is LOADING
    return load


@pytest.mark.parametrize("failed", [True, False])
def test_from_lookup_to_the_end(failed: bool) -> None:
    load = begun()
    assert load.progress is not None
    pieces, chunks = load.progress.take_pieces()
    assert [piece.blocks for piece in pieces] == [[5], [6]]
    assert chunks == [0, 1]
    assert load.progress.is_complete
    load.take_told()
    assert load.state is TOLD
    load.end(failed=failed)
    assert load.state is (FAILED if failed else NONE)
    load.forget()
    assert load.state is (FAILED if failed else NONE), "a failure is for good"


def test_what_nobody_waits_for_changes_nothing() -> None:
    load = RequestLoad(is_wanted=True)
    load.take_promise(PROMISE)
    assert (load.state, load.promise) == (NONE, None)
    load = promised()
    load.take_promise(Promise(1, 8, 1, 0, [], [], b""))
    assert load.promise is PROMISE
    assert not load.may_find, "it has asked by what it knew"
    assert load.known == 2


def test_before_blocks_are_allocated_a_lost_session_takes_everything_back() -> None:
    load = promised()
    load.session_changed()
    assert (load.state, load.number, load.promise, load.known) == (NONE, 0, None, 0)
    load.look_up(2, 0.0)
    load.take_found(Found(2, 1, 1), PrefixHit(1))
    found = load.state
    load.ask(0, PrefixHit(1), (), 0.0)
    assert (found, load.state) == (FOUND, ASKED)


def test_after_that_it_goes_on_with_what_the_workers_know() -> None:
    load = begun()
    load.session_changed()
    assert (load.state, load.number) == (LOADING, 0)
    assert load.progress is not None
    assert load.progress.is_complete
    assert load.progress.failed_blocks() == [5, 6]
    load.take_told()
    load.end(failed=False)
    assert load.state is FAILED
