"""Fixtures of tests that go through the pool's socket."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import pool_process
from tests.pool_process import PatientClient

from forebay.pool.client import Client
from forebay.pool.service import Service


@pytest.fixture
def place() -> Iterator[Path]:
    """A private directory with a short name."""
    with pool_process.short_directory() as path:
        yield path


@pytest.fixture
def service(place: Path) -> Iterator[Service]:
    """A pool without a disk on a thread of ours."""
    with pool_process.serving(place) as served:
        yield served


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    """A client of it."""
    with PatientClient(service.address.path) as joined:
        yield joined
