"""A pool that makes room for much answers others meanwhile, and goes on without being asked."""

import time
from pathlib import Path

import pytest
from tests import poolside
from tests.desk import NAMESPACE, chain

from forebay.pool.client.session import join
from forebay.pool.messages import Found, Lookup, Reserve, Reserved, Run
from forebay.record.header import ROOT
from forebay.record.region import short
from forebay.sys.clock import Clock

MANY = 20_000  # a second on a slow machine, a fifth of one on a fast one


@pytest.mark.parametrize("is_another", [False, True], ids=["its own", "another's"])
def test_a_lookup_is_answered_while_slots_are_found(place: Path, is_another: bool) -> None:
    keys = chain("many", MANY)
    offer = Reserve(1, [Run(NAMESPACE, 0, ROOT, key, 1) for key in keys])
    with poolside.serving(place, poolside.SMALL) as service:
        links = []
        for name in ("e", "f"):
            link = join(service.place.path, name, Clock(), time.monotonic() + 5)
            assert not isinstance(link, str), link
            links.append(link)
        links[0].post(offer)
        time.sleep(0.02)  # it is being acted on
        asks = links[is_another]
        asks.post(Lookup(1, NAMESPACE, 0, short(keys[0])))
        answer = asks.take(time.monotonic() + 10)
        assert isinstance(answer, Found)
        if is_another:
            assert links[0].take(0.0) is None, "the offer is not answered yet"
        answer = links[0].take(time.monotonic() + 10)
        assert isinstance(answer, Reserved)
        assert len(answer.answers) == MANY
        for link in links:
            link.close()
