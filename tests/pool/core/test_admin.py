"""Clearing while the pool ends: what was not done is said."""

import logging

import pytest
from tests.core_harness import Client, CoreHarness, chain

from forebay.pool.messages import Clear

MIB = 1 << 20


def test_a_clear_that_the_pools_end_cuts_short_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Memory is wiped with the help of the pool's thread, which has stopped."""
    caplog.set_level(logging.INFO)
    core, client = CoreHarness(4 * MIB), Client("e")
    core.store(client, chain("a", 4))
    core.pool.handle(client, Clear(None))
    core.pool.close(300)
    assert "removed 4 chunks" in caplog.text
    assert "was not all zeroed; clear again." in caplog.text
