"""A session is lost and joined anew: under another name, with what was read settled."""

import time
from pathlib import Path

from forebay.pool.client.session import PoolSession, join
from forebay.pool.service import Service
from forebay.sys.clock import Clock


def joined(service: Service) -> PoolSession:
    session = PoolSession(service.address.path, Clock(), maps_slab=False)
    assert session.wait_until_joined(time.monotonic() + 20)
    return session


def lose(session: PoolSession) -> None:
    assert session.connection is not None
    session.connection.close()


def test_a_lost_session_is_followed_by_one_with_another_name(service: Service) -> None:
    session = joined(service)
    assert session.poll(), "joined"
    assert not session.poll(), "nothing new"
    before = session.engine
    lose(session)
    assert session.wait_until_joined(time.monotonic() + 20)
    assert session.engine != before
    assert session.poll(), "another session, if of the same pool"
    session.close()


def test_reads_outlive_their_session_and_are_told_of_once_they_end(service: Service) -> None:
    session = joined(service)
    session.begin_read(1)
    session.begin_read(2)
    lose(session)
    session.poll()
    assert session.wait_until_joined(time.monotonic() + 20)
    session.begin_read(3)
    seen = []
    for serial in (1, 2, 3):
        seen.append(session.has_lost_reads)
        session.end_read(serial)
    assert seen == [True, True, False]
    session.close()


def test_a_read_begun_before_the_loss_is_known_belongs_to_the_lost_session(
    service: Service,
) -> None:
    session = joined(service)
    session.poll()
    lose(session)
    session.take(time.monotonic() + 20)  # notices the loss; its user hears of it by `poll`
    session.begin_read(1)
    assert session.poll(), "now it is known"
    assert session.wait_until_joined(time.monotonic() + 20)
    seen = [session.has_lost_reads]  # so nothing was said to be settled
    session.end_read(1)
    assert [*seen, session.has_lost_reads] == [True, False]
    session.close()


def test_without_a_pool_there_is_a_sentence_at_once(place: Path) -> None:
    why = join(str(place / "none.sock"), "engine", Clock(), time.monotonic() + 20)
    assert isinstance(why, str)
    assert why.startswith("no pool answers at ")
