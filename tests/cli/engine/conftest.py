"""Fixtures of tests that start an engine's command."""

from collections.abc import Iterator

import pytest
from tests import poolside

from forebay.pool.life import Service


@pytest.fixture
def service() -> Iterator[Service]:
    """A pool without a disk on a thread of ours."""
    with poolside.short_directory() as place, poolside.serving(place) as served:
        yield served
