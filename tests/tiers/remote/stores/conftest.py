"""One real S3 server for all tests here; without its packages (make test-stores) there are none."""

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.seaweed import S3Server

HAS_STORES = find_spec("obstore") is not None and find_spec("trustme") is not None
collect_ignore_glob = [] if HAS_STORES else ["test_*.py"]


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3Server]":
    from tests import seaweed

    with (
        seaweed.serving_s3(tmp_path_factory.mktemp("seaweed")) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ACCESS_KEY_ID", seaweed.KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.SECRET)
        yield server


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
