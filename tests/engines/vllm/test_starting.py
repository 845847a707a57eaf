"""How an engine starts: without a pool, with one that it cannot use, with wrong settings."""

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.test_config import (
    caches,
    config,
    connector,
    declined_caches,
    full,
    is_disabled,
    place,
)
from tests.engines.vllm.test_scheduler_side import Output
from tests.pool_process import running_pool, wait_until

from forebay.errors import StartupError
from forebay.pool.messages import Refused
from forebay.pool.wire import encode

__all__ = ["config", "place"]  # fixtures
pytestmark = pytest.mark.vllm


def test_strict_refuses_what_is_declined_and_to_be_without_a_pool(config: Any, place: Path) -> None:
    strict = {"socket": str(place / "nobody"), "strict": True}
    with pytest.raises(StartupError, match=r"strict .*without full attention"):
        connector(config, declined_caches()["window"], **strict)
    with pytest.raises(StartupError, match="no pool answers"):
        connector(config, caches(full()), no_pool="serve", **strict)
    assert not list(place.iterdir())


NO_POOL: dict[str, dict[str, Any]] = {
    "could not begin": {"disk": ["/nowhere/at/all:1GiB"]},
    "cannot be used": {"socket": "/nowhere/at/all/pool.sock"},
    "a socket's path at most": {"socket": "/" + "x" * 200},
    "written by others": {"socket": "/tmp/pool-that-is-not-there.sock"},
}


@pytest.mark.parametrize("why", NO_POOL)
def test_an_engine_starts_where_no_pool_can_be_had(
    config: Any, place: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: joining and starting a pool is inside the boundary; only `strict` ends the engine."""
    settings = {"socket": str(place / "pool.sock"), "weights_id": "w", "dram": "16MiB"}
    settings |= NO_POOL[why]
    made = connector(config, caches(full()), **settings)
    assert sum(why in line for line in caplog.messages) == 1, caplog.messages
    assert made.get_kv_connector_stats().data["state"] == "no_pool"
    assert made.get_num_new_matched_tokens(NAMELESS, 0) == (0, False)
    assert made.reset_cache() is True
    assert made.boundary.failures == 0
    made.shutdown()
    with pytest.raises(StartupError, match=why):
        connector(config, caches(full()), strict=True, **settings)


def test_an_engine_that_started_without_a_pool_joins_one_later(config: Any, place: Path) -> None:
    wanted = {"disk": [f"{place / 'disk'}:1GiB"], "dram": "16MiB", "weights_id": "w"}
    made = connector(config, caches(full()), socket=str(place / "pool.sock"), **wanted)
    assert not made._scheduler.is_joined
    with running_pool(place):
        wait_until(
            lambda: made.build_connector_meta(Output) and made._scheduler.is_joined, "it to join"
        )
        made.shutdown()


def test_a_bug_at_start_is_no_pool(
    config: Any, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is raised: the engine serves as without Forebay."""
    monkeypatch.setattr("forebay.sys.processes.subprocess", None)
    made = connector(config, caches(full()), socket=str(place / "pool.sock"), weights_id="w")
    is_disabled(made, caplog, "no_pool", failures=1)


class Nameless:
    """A request that nobody has told us of."""

    request_id = "nameless"


NAMELESS = Nameless()


def test_an_unknown_setting_is_one_sentence(config: Any) -> None:
    with pytest.raises(StartupError, match=r'kv_connector_extra_config\["dran"\].*dram'):
        connector(config, caches(full()), dran="1GiB")


def test_a_wrong_value_is_one_sentence(config: Any) -> None:
    with pytest.raises(StartupError, match=r'kv_connector_extra_config\["dram"\]'):
        connector(config, caches(full()), dram="a lot")


def test_a_missing_socket_is_one_sentence(config: Any, place: Path) -> None:
    with pytest.raises(StartupError, match=r"no pool answers at .*nobody") as raised:
        connector(config, caches(full()), socket=str(place / "nobody"), no_pool="fail")
    assert "\n" not in str(raised.value)


def test_a_pool_of_another_version_is_one_sentence(config: Any, place: Path) -> None:
    """Something listens there and says what no pool of ours would."""
    path = str(place / "pool.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(20)

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(encode(Refused("this pool speaks protocol 9; update Forebay.")))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(StartupError) as raised:
            connector(config, caches(full()), socket=path, no_pool="fail")
        thread.join()
    assert "\n" not in str(raised.value)
    assert "protocol 9" in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_pool_of_another_user_is_one_sentence(config: Any, place: Path) -> None:
    place.chmod(0o755)
    with running_pool(place, disk=False) as pool:
        Path(pool.socket).chmod(0o777)
        os.seteuid(65534)
        joining = {"socket": pool.socket, "no_pool": "fail", "weights_id": "not ours to read"}
        try:
            with pytest.raises(StartupError) as raised:
                connector(config, caches(full()), **joining)
        finally:
            os.seteuid(0)
    assert "\n" not in str(raised.value)
