"""Secrets come from where they may come from, and what is wrong with them is one sentence."""

import os
from pathlib import Path

import pytest
from tests.other_user import OTHER_UID

from forebay.errors import StartupError
from forebay.sys.protection.secret_source import kind_of, read_secret, write_new

TEXT = "names=aa key=bb\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    write_new(str(path), TEXT)
    return path


@pytest.fixture
def pipe() -> int:
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    return reading


def test_every_source_gives_its_text(
    file: Path, pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KV_KEYS", TEXT)
    for source in (f"file:{file}", f"fd:{pipe}", f"command:cat '{file}'", "env:KV_KEYS"):
        assert read_secret(source) == TEXT, source
    assert "KV_KEYS" not in os.environ, "no child inherits it"
    assert kind_of("command:a:b") == "command"


def test_a_new_file_is_its_owners_alone(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    write_new(str(file), "other")
    assert file.read_text() == "other"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602, 0o601])
def test_a_file_that_others_can_use_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(StartupError, match="chmod 600"):
        read_secret(f"file:{file}")


def test_a_file_that_a_group_may_read_is_allowed(file: Path) -> None:
    file.chmod(0o440)  # as Kubernetes mounts a secret
    assert read_secret(f"file:{file}") == TEXT


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_of_another_user_is_refused(file: Path) -> None:
    os.chown(file, OTHER_UID, OTHER_UID)
    with pytest.raises(StartupError, match="belongs to another user"):
        read_secret(f"file:{file}")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("file:{place}", "is not a regular file"),
        ("file:{place}/nothing", "cannot be read: No such file"),
        ("file:{place}/empty", "gives nothing"),
        ("file:{place}/large", "gives more than 64 KiB"),
        ("file:{place}/odd", "gives no plain text"),
        ("file:a\0b", "cannot be read: no file's name"),
        ("fd:9999", "descriptor 9999 cannot be read: Bad file descriptor"),
        ("command:{place}/nothing", "cannot be run: No such file"),
        ("command:false", "failed with exit status 1"),
        ("env:NO_SUCH_VARIABLE", "gives nothing"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, source: str, sentence: str) -> None:
    for name, content in (("empty", b" \n"), ("large", b"x" * 70_000), ("odd", b"\xff")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o600)
    with pytest.raises(StartupError, match=sentence):
        read_secret(source.replace("{place}", str(tmp_path)))


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be written: No such file"):
        write_new(str(tmp_path / "nowhere" / "keys"), TEXT)
    with pytest.raises(StartupError, match="cannot be written"):
        write_new("a\0b", TEXT)
