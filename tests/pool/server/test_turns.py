"""A pool that makes room for much answers others meanwhile, and goes on without being asked."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path

from tests import pool_process
from tests.core_harness import NAMESPACE, chain
from tests.pool.server.test_strangers import connected, heard_one_by_one

from forebay.metrics.reading import count
from forebay.pool import wire
from forebay.pool.messages import (
    PROTOCOL,
    ChunkRun,
    ClientMessage,
    Found,
    Hello,
    Lookup,
    Reserve,
    Reserved,
    StatsQuery,
    StatsReply,
)
from forebay.pool.service import Service
from forebay.record.header import ROOT
from forebay.record.region import short

MANY = 1000  # chunks in one offer; a round makes room for sixteen
KEYS = chain("many", MANY)
OFFER = Reserve(1, [ChunkRun(NAMESPACE, 0, ROOT, key, 1) for key in KEYS])
LOOKUP = Lookup(1, NAMESPACE, 0, short(KEYS[0]))


def encoded(engine: str, *messages: ClientMessage) -> bytes:
    return b"".join(wire.encode(each) for each in (Hello(PROTOCOL, engine), *messages))


def test_a_lookup_overtakes_an_offer_of_its_own_connection(place: Path) -> None:
    with ExitStack() as links:
        sent = encoded("e", OFFER, LOOKUP)
        opened = []

        def offer(service: Service) -> None:
            opened.append(links.enter_context(connected(service, sent)))

        with pool_process.serving(place, before=offer):
            answers = heard_one_by_one(opened[0])
            _, first, second = (next(answers) for _ in range(3))
    assert isinstance(first, Found)
    assert isinstance(second, Reserved)
    assert len(second.answers) == MANY


def test_t57_others_are_answered_while_slots_are_found(place: Path) -> None:
    with ExitStack() as links:
        opened: list[socket.socket] = []

        def offer(service: Service) -> None:
            both = (encoded("e", OFFER), encoded("f", LOOKUP, StatsQuery()))
            opened.extend(links.enter_context(connected(service, sent)) for sent in both)

        with pool_process.serving(place, before=offer):
            answers = heard_one_by_one(opened[1])
            _, found, reply = (next(answers) for _ in range(3))
            assert isinstance(found, Found)
            assert isinstance(reply, StatsReply)
            assert count(json.loads(reply.json), "leased_slots") < MANY // 2
            answers = heard_one_by_one(opened[0])
            _, reserved = (next(answers) for _ in range(2))
            assert isinstance(reserved, Reserved)
            assert len(reserved.answers) == MANY
