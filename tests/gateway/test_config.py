"""The gateway's file: each slip is one sentence, and nothing public without keys."""

import hashlib
import json
from hashlib import sha256
from pathlib import Path

import pytest
from tests.gateway_harness import SmallEngine, answers, gateway

from forebay.cli.main import main
from forebay.errors import SettingsError
from forebay.gateway.config import parse_config, read_config

ENGINE = {"name": "a", "model": "m", "url": "http://127.0.0.1:8001"}
KEY = {"name": "team", "token_sha256": "ab" * 32}


def test_the_least_file() -> None:
    found = parse_config({"engine": [ENGINE]})
    assert found.listen == ("127.0.0.1", 8000)
    assert not found.has_keys
    assert [engine.name for engine in found.engines] == ["a"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "names no engine"),
        ({"engines": []}, "'engines' is none of listen, engine"),
        ({"engine": [ENGINE, ENGINE]}, "engine a is listed twice"),
        ({"engine": [ENGINE, {**ENGINE, "name": "b"}]}, "engine's url http"),
        ({"engine": [{**ENGINE, "name": "-"}]}, "has a name of 1 to 64"),
        ({"engine": [{**ENGINE, "url": "127.0.0.1:8001"}]}, "url is its address alone"),
        ({"engine": [{**ENGINE, "url": "http://a:b@c"}]}, "url is its address alone"),
        ({"engine": [{**ENGINE, "url": "http://[::1"}]}, "url is its address alone"),
        ({"engine": [{**ENGINE, "model": ""}]}, "model is the name"),
        ({"engine": [{**ENGINE, "max_num_seqs": 0}]}, "max_num_seqs is out of range"),
        ({"engine": [{**ENGINE, "pool": 1}]}, "pool must be true or false"),
        ({"engine": [{**ENGINE, "gpus": 1}]}, "'gpus' is none of name"),
        ({"engine": [ENGINE], "listen": "0.0.0.0:1"}, "needs keys"),
        ({"engine": [ENGINE], "listen": "none"}, "name an address"),
        ({"engine": [ENGINE], "body_limit": "1"}, "1KiB or more"),
        ({"engine": [ENGINE], "key": [{**KEY, "token_sha256": "secret"}]}, "64 hex digits"),
        ({"engine": [ENGINE], "key": [KEY, {**KEY, "name": "b"}]}, "token_sha256 is listed twice"),
        ({"engine": [ENGINE], "key": [{**KEY, "name": "anonymous"}]}, "no key can be called"),
        (
            {"engine": [ENGINE], "key": [{**KEY, "token_sha256": sha256().hexdigest()}]},
            "that of no token",
        ),
        ({"engine": "x"}, "engine must be tables"),
        ({"engine": [3]}, "write [[engine]] tables"),
    ],
)
def test_a_slip_is_one_sentence(table: "dict[str, object]", words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_config(table)
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "secret" not in str(caught.value)


def test_a_public_address_with_keys() -> None:
    found = parse_config({"engine": [ENGINE], "key": [KEY], "listen": "0.0.0.0:80"})
    assert found.has_keys


def test_check_says_what_the_file_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('[[engine]]\nname = "a"\nmodel = "m"\nurl = "http://127.0.0.1:8001"\n')
    assert main(["gateway", "check", str(path)]) == 0
    assert "m: a" in capsys.readouterr().out
    assert main(["gateway", "check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == {"m": ["a"]}
    path.write_text("listen = 3")
    assert main(["gateway", "check", str(path)]) == 2
    assert capsys.readouterr().err == f"forebay: {path}: the file: listen must be a text.\n"
    path.write_text("x = ")
    with pytest.raises(SettingsError, match="is not TOML"):
        read_config(path)
    assert main(["gateway", "key", "x"]) == 2


def test_keys_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "key", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert hashlib.sha256(made["token"].encode()).hexdigest() == made["token_sha256"]
    keys = f'[[key]]\nname = "team"\ntoken_sha256 = "{made["token_sha256"]}"\n'
    other = hashlib.sha256(b"boss").hexdigest()
    keys += f'[[key]]\nname = "boss"\ntoken_sha256 = "{other}"\noperator = true\n'
    with SmallEngine(answers) as engine, gateway(engine, config=keys) as front:
        body = {"model": "small", "messages": []}
        bearer = {"Authorization": f"Bearer {made['token']}"}
        assert front.fetch("/v1/chat/completions", body)[0] == 401
        assert front.fetch("/v1/chat/completions", body, Authorization="Bearer x")[0] == 401
        assert front.fetch("/v1/models")[0] == 401
        assert front.fetch("/sleep", body)[0] == 401
        assert front.fetch("/health")[0] == 200
        assert front.fetch("/v1/chat/completions", body, **bearer)[0] == 200
        assert front.fetch("/v1/messages", body, X_Api_Key=made["token"])[0] == 200
        assert front.fetch("/status", **bearer)[0] == 403
        assert front.fetch("/metrics", **bearer)[0] == 403
        assert front.fetch("/status", Authorization="Bearer boss")[0] == 200
        text = front.fetch("/metrics", Authorization="Bearer boss")[2]
        assert b'forebay_gateway_requests_total{engine="a",reason="only"} 2.0' in text
        assert made["token"] not in front.text()
        assert all("authorization" not in asked.headers for asked in engine.asked)
        assert all("x-api-key" not in asked.headers for asked in engine.asked)
