"""Fixtures of tests that start an engine's command: a pool, and a module in vLLM's place."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import pool_process

from forebay.pool.service import Service

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private directory whose name leaves room for a socket's path."""
    with pool_process.short_directory() as place:
        yield place


@pytest.fixture
def service() -> Iterator[Service]:
    """A pool without a disk on a thread of ours."""
    with pool_process.short_directory() as place, pool_process.serving(place) as served:
        yield served


@pytest.fixture
def in_place_of_vllm(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Variables under which this text is vLLM's server; there is a demo model and no pool."""

    def variables(server: str) -> dict[str, str]:
        package = tmp_path / "site" / "vllm" / "entrypoints" / "openai"
        package.mkdir(parents=True)
        for directory in (package, package.parent, package.parent.parent):
            (directory / "__init__.py").touch()
        (package / "api_server.py").write_text(server)
        model = tmp_path / "cache" / "forebay" / "models" / "smollm2-135m-instruct"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"weights")
        runtime = tmp_path / "run"
        runtime.mkdir(mode=0o700)
        return {
            **pool_process.environment(),
            "PYTHONPATH": f"{tmp_path / 'site'}:{SOURCE}",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_RUNTIME_DIR": str(runtime),
        }

    return variables
