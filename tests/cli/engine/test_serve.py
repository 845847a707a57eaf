"""`forebay serve`: what vLLM is started with, and what stops it before it starts.

vLLM is played by a module of the same name that prints how it was started.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.engine import serve
from forebay.cli.main import build_parser, main
from forebay.engines.start import demo_model, vllm
from forebay.errors import SettingsError
from forebay.plan.model.known import MODELS
from forebay.pool.address import find_address, prepare
from forebay.pool.service import Service
from forebay.settings import DiskSetting, Settings, SettingsSource, build

SHOW = """\
import json, os, signal, sys
print(json.dumps({"arguments": sys.argv[1:], "variables": dict(os.environ)}), flush=True)
if "--wait" in sys.argv:
    signal.pause()
"""


@pytest.fixture
def environment(in_place_of_vllm: Callable[[str], dict[str, str]]) -> dict[str, str]:
    return in_place_of_vllm(SHOW)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "forebay.cli", "serve", *words]


def served(variables: dict[str, str], *words: str) -> tuple[dict[str, Any], list[str]]:
    """The connector's settings, and what else vLLM was told."""
    ended = subprocess.run(
        command(*words), env=variables, capture_output=True, text=True, timeout=300, check=True
    )
    arguments = json.loads(ended.stdout)["arguments"]
    assert arguments[0] == "--kv-transfer-config"
    return json.loads(arguments[1]), arguments[2:]


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["serve", *words])


def test_words_are_sorted_out() -> None:
    found = parsed("a/model", "--port", "80", "--dram=1GiB", "-tp", "2", "--disk", "/d:1GB", "--x")
    assert (found.model, found.dram, found.disk) == ("a/model", "1GiB", ["/d:1GB"])
    assert found.passed_on == ["--port", "80", "-tp", "2", "--x"]
    found = parsed("--port", "80", "--", "--dram", "1GiB")
    assert (found.model, found.dram) == (None, None)
    assert found.passed_on == ["--port", "80", "--dram", "1GiB"]


def test_settings_follow_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve.settings_of(parsed("--pool", "/s")) == Settings(socket="/s", no_pool="fail")
    optional = serve.settings_of(parsed("--pool", "/s", "--pool-optional"))
    assert optional == Settings(socket="/s", no_pool="serve")
    monkeypatch.setenv("FOREBAY_MIN_TOKENS", "64")
    found = serve.settings_of(parsed("--dram", "1GiB", "--disk", "/d:1GB"))
    assert found == Settings(dram=1 << 30, disk=(DiskSetting("/d", 10**9),), min_tokens=64)
    with pytest.raises(SettingsError, match="--pool joins a pool as it is"):
        serve.settings_of(parsed("--pool", "/s", "--dram", "1GiB"))


def test_it_becomes_vllm_on_a_running_pool(service: Service, environment: dict[str, str]) -> None:
    environment |= {"FOREBAY_MIN_TOKENS": "64", "FOREBAY_REALM": "between us"}
    path = service.address.path
    transfer, arguments = served(environment, "a/model", "--pool", path, "--port", "80")
    assert transfer == {
        "kv_connector": "ForebayConnector",
        "kv_connector_module_path": "forebay.engines.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"socket": path, "no_pool": "fail", "min_tokens": 64},
    }
    assert arguments == ["--model", "a/model", "--port", "80"]


def test_variables_are_said_once_and_a_secret_stays_one(
    service: Service, environment: dict[str, str]
) -> None:
    environment |= {"FOREBAY_MIN_TOKENS": "64", "FOREBAY_REALM": "between us"}
    ended = subprocess.run(
        command("--pool", service.address.path), env=environment, capture_output=True, check=True
    )
    found = json.loads(ended.stdout)
    ours = {name for name in found["variables"] if name.startswith("FOREBAY_")}
    assert ours == {"FOREBAY_REALM"}
    assert "between us" not in str(found["arguments"])
    assert found["variables"]["VLLM_NO_USAGE_STATS"] == "1"
    assert found["variables"]["HF_HUB_OFFLINE"] == "1"  # it is the demo model


def test_without_a_model_it_is_the_demo_model(
    service: Service, environment: dict[str, str]
) -> None:
    pool = ("--pool", service.address.path)
    _, arguments = served(environment, *pool)
    assert arguments[1].startswith(environment["XDG_CACHE_HOME"])
    assert "--enforce-eager" in arguments
    dtype = demo_model.dtype_arguments()
    assert tuple(arguments[-len(dtype) :]) == dtype or not dtype
    _, arguments = served(environment, *pool, "--dtype", "half")
    assert arguments[-2:] == ["--dtype", "half"], "the user's words are the last, and hold"
    _, arguments = served(environment, *pool, "--config", "serve.yaml")
    assert arguments == ["--config", "serve.yaml"]


def test_no_pool_but_an_optional_one(tmp_path: Path, environment: dict[str, str]) -> None:
    socket = str(tmp_path / "none.sock")
    transfer, _ = served(environment, "m", "--pool", socket, "--pool-optional")
    assert transfer["kv_connector_extra_config"] == {"socket": socket, "no_pool": "serve"}


def test_a_pool_is_left_to_the_engine_to_start(environment: dict[str, str]) -> None:
    """Only the engine knows whether it has any use for one."""
    transfer, _ = served(environment, "m", "--dram", "16MiB", "--weights-id", "mine", "--strict")
    socket = Path(environment["XDG_RUNTIME_DIR"]) / "forebay" / "pool.sock"
    settings = {"dram": 16 << 20, "socket": str(socket), "weights_id": "mine", "strict": True}
    assert transfer["kv_connector_extra_config"] == settings
    assert not socket.exists()
    prepare(find_address(str(socket)))  # as the engine does: its directory is there, and safe


def test_a_model_that_would_be_declined_is_told_before_it_is_loaded(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    known = {"Mistral-7B-v0.1": True, "Llama-3.1-8B": False}
    for name, is_declined in known.items():
        model = tmp_path / name
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODELS[name].config))
        ended = subprocess.run(
            command(str(model)), env=environment, capture_output=True, text=True, check=True
        )
        assert ("disabled for this engine: models without full" in ended.stderr) == is_declined
        assert "--model" in ended.stdout, "vLLM is started all the same"
    refused = subprocess.run(
        command(str(tmp_path / "Mistral-7B-v0.1"), "--strict"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "strict and cannot share: models without full" in refused.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_vllm(
    service: Service, environment: dict[str, str], number: signal.Signals
) -> None:
    words = command("m", "--pool", service.address.path, "--wait")
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        running.send_signal(number)
        assert running.wait(300) == -number


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("m", "--kv-transfer-config", "{}"), "forebay serve writes --kv-transfer-config itself"),
        (("m", "--pool", "/nowhere.sock"), "no pool answers at /nowhere.sock"),
        (("m", "--dram", "much"), "--dram"),
        (("m", "--disk", "/nowhere:1GiB"), "/nowhere is not a directory; create it with"),
        (("m", "--pool", "/nowhere.sock", "--pool-optional", "--strict"), "no pool answers at"),
    ],
)
def test_what_cannot_begin_is_one_sentence(
    words: tuple[str, ...], said: str, environment: dict[str, str]
) -> None:
    ended = subprocess.run(
        command(*words), env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("forebay: ")
    assert said in ended.stderr


def test_without_vllm_the_sentence_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for name in ("serve", "demo"):
        assert main([name]) == 2
        err = capsys.readouterr().err
        assert "make vllm" in err
        assert err.count("\n") == 1


def test_the_plain_way_in_the_docs_is_what_serve_writes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    written = json.loads(page.split("--kv-transfer-config '")[1].split("'")[0])
    extra = written["kv_connector_extra_config"]
    settings = build([SettingsSource(extra, str)])
    made = vllm.transfer_config(settings, "/socket")
    assert made.pop("kv_connector_extra_config") == {
        "dram": settings.dram,
        "disk": ["/mnt/nvme/forebay:1000000000000"],
        "socket": "/socket",
    }
    del written["kv_connector_extra_config"]
    # For a vLLM that is told to load other plugins alone; the page says so.
    assert made.pop("kv_connector_module_path") == "forebay.engines.vllm.connector"
    assert made == written
