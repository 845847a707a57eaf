"""A key of a tenant: its requests have the tenant's salt, whatever the client writes."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gateway_harness import SmallEngine, answers, chat, engine_table, gateway
from tests.pool_process import environment

from forebay.cli.main import main
from forebay.errors import SettingsError
from forebay.gateway.config import parse_config, tenant_salt
from forebay.gateway.front.reading import read_body, with_salt

SECRET = b"0123456789abcdef"
LOOKALIKES = (
    b'{"model": "small", "messages": [], "cache_salt": "mine"}',
    b'{"model": "small", "messages": [], "cache\\u005fsalt": "mine"}',
    b'{"cache_salt": null, "model": "small", "messages": [], "cache_salt": "mine"}',
    b'{"model": "small", "messages": [], "cache_salt": ["x"]}',
    b'{"model": "small", "messages": [], "cache_salt": ""}',
)


def key_table(name: str, **more: Any) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    lines = [f"{field} = {json.dumps(value)}\n" for field, value in more.items()]
    return f'[[key]]\nname = "{name}"\ntoken_sha256 = "{digest}"\n' + "".join(lines)


def file_of(place: Path) -> str:
    secret = place / "salts.key"
    secret.write_bytes(SECRET + b"\n")
    keys = key_table("team", tenant="search") + key_table("other-team", tenant="search")
    keys += key_table("shop", tenant="shop") + key_table("plain", operator=True)
    return f'salt_key_file = "{secret}"\n{keys}'


def test_requests_have_the_salt_of_their_key_s_tenant(tmp_path: Path) -> None:
    with (
        SmallEngine(answers) as engine,
        gateway(engine, config=file_of(tmp_path), pool=True) as front,
    ):
        body = json.dumps(chat(max_tokens=3)).encode()
        for name in ("team", "other-team", "shop", "plain"):
            for path in ("chat/completions", "embeddings"):
                assert front.fetch(f"/v1/{path}", body, X_Api_Key=name)[0] == 200
        sent = [json.loads(asked.body) for asked in engine.asked]
        salts = [each.pop("cache_salt", None) for each in sent]
        search, shop = (tenant_salt(SECRET, name) for name in ("search", "shop"))
        assert salts == [search] * 4 + [shop] * 2 + [None] * 2
        assert sent == [chat(max_tokens=3)] * 8
        assert engine.asked[-1].body == body
        own = b'{"model": "small", "messages": [], "cache_salt": "mine"}'
        assert front.fetch("/v1/completions", own, X_Api_Key="plain")[0] == 200
        assert engine.asked[-1].body == own
        before = len(engine.asked)
        for hostile in LOOKALIKES:
            status, _, said = front.fetch("/v1/chat/completions", hostile, X_Api_Key="team")
            assert status == 400, hostile
            assert b"cache_salt" in said
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsmall\r\n--b--\r\n'
        kind = {"Content_Type": "multipart/form-data; boundary=b", "X_Api_Key": "team"}
        assert front.fetch("/v1/audio/transcriptions", form, **kind)[0] == 400
        assert len(engine.asked) == before
        told = front.fetch("/status", X_Api_Key="plain")[2]
        assert [each["tenant"] for each in json.loads(told)["keys"]] == [
            "search", "search", "shop", ""
        ]  # fmt: skip
        for salt in (search, shop):
            assert salt not in front.text()
            assert salt.encode() not in told


def test_one_tenant_learns_nothing_of_another_from_where_it_is_sent(tmp_path: Path) -> None:
    """The header names a reason: that a prompt was seen before is told to its own tenant alone."""
    with SmallEngine(answers) as one, SmallEngine(answers) as other:
        tables = file_of(tmp_path)
        with gateway(one, other, config=tables) as front:
            body = chat("w" * 40_000)
            for name, known in (("team", False), ("shop", False), ("other-team", True)):
                headers = front.fetch("/v1/chat/completions", body, X_Api_Key=name)[1]
                assert (headers["x-forebay-reason"] != "idle") is known, name


def test_a_body_is_written_anew_with_one_salt() -> None:
    body = b'{"cache_salt": null, "model":"m" , "x": [1e3, "\\u00e4"], "x": 2}'
    found = with_salt(body, "s")
    assert found == b'{"cache_salt":"s","model":"m","x":2}'
    assert not isinstance(read_body(found, ""), str)
    for refused in (b"[]", b"", b"\xff", b'"x"', b'{"a": 1} {"b": 2}', "{}".encode("utf-16")):
        assert isinstance(with_salt(refused, "s"), str)


def test_what_check_and_salt_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(file_of(tmp_path) + engine_table("a", "http://127.0.0.1:1"))
    assert main(["gateway", "check", str(path)]) == 0
    assert "team (tenant search), other-team (tenant search), shop" in capsys.readouterr().out
    assert main(["gateway", "salt", str(path), "search"]) == 0
    salt = capsys.readouterr().out
    assert salt == tenant_salt(SECRET, "search") + "\n"
    hashing = [sys.executable, "-m", "forebay.cli.main", "hash-salt", "--tenant-key-file"]
    words = [*hashing, str(tmp_path / "salts.key")]
    found = subprocess.run(
        words, input=salt, capture_output=True, text=True, env=environment(), check=True
    )
    assert len(found.stdout.strip()) == 32
    assert main(["gateway", "salt", str(path), "nobody"]) == 2
    assert "no [[key]] of this file has that tenant" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "needs salt_key_file"),
        ({"salt_key_file": "/nowhere/at/all"}, "cannot be read"),
        ({"salt_key_file": "short"}, "needs 16 bytes or more"),
    ],
)
def test_a_tenant_without_a_secret_is_a_slip(
    more: "dict[str, str]", words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short")
    key = {"name": "team", "token_sha256": "ab" * 32, "tenant": "search"}
    engine = {"name": "a", "model": "m", "url": "http://127.0.0.1:1"}
    with pytest.raises(SettingsError, match=words) as caught:
        parse_config({"engine": [engine], "key": [key], **more})
    assert str(caught.value).endswith(".")


def test_a_setting_shows_no_salt(tmp_path: Path) -> None:
    secret = tmp_path / "salts.key"
    secret.write_bytes(SECRET)
    (key,) = parse_config(
        {
            "engine": [{"name": "a", "model": "m", "url": "http://127.0.0.1:1"}],
            "key": [{"name": "team", "token_sha256": "ab" * 32, "tenant": "search"}],
            "salt_key_file": str(secret),
        }
    ).keys
    assert key.cache_salt
    assert key.cache_salt not in repr(key)
