"""A pool that makes room for much answers others meanwhile, and goes on without being asked."""

import time
from pathlib import Path

import pytest
from tests import pool_process
from tests.core_harness import NAMESPACE, chain

from forebay.pool.client.link import join
from forebay.pool.messages import ChunkRun, Found, Lookup, Reserve, Reserved
from forebay.record.header import ROOT
from forebay.record.region import short
from forebay.sys.clock import Clock

MANY = 20_000  # a second on a slow machine, a fifth of one on a fast one


@pytest.mark.parametrize("is_another", [False, True], ids=["its own", "another's"])
def test_a_lookup_is_answered_while_slots_are_found(place: Path, is_another: bool) -> None:
    keys = chain("many", MANY)
    offer = Reserve(1, [ChunkRun(NAMESPACE, 0, ROOT, key, 1) for key in keys])
    with pool_process.serving(place, pool_process.SMALL) as service:
        links = []
        for name in ("e", "f"):
            link = join(service.place.path, name, Clock(), time.monotonic() + 5)
            assert not isinstance(link, str), link
            links.append(link)
        links[0].line.post(offer)
        time.sleep(0.02)  # it is being acted on
        asks = links[is_another]
        asks.line.post(Lookup(1, NAMESPACE, 0, short(keys[0])))
        answer = asks.line.take(time.monotonic() + 10)
        assert isinstance(answer, Found)
        if is_another:
            assert links[0].line.take(0.0) is None, "the offer is not answered yet"
        answer = links[0].line.take(time.monotonic() + 10)
        assert isinstance(answer, Reserved)
        assert len(answer.answers) == MANY
        for link in links:
            link.close()
