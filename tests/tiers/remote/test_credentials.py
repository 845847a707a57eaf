"""AWS's files as a source of credentials: the profile in use, as it is now."""

from pathlib import Path

import pytest

from forebay.errors import StartupError
from forebay.tiers.remote.stores import credentials, opening
from forebay.urls import parse_url


def test_both_files_are_read_again_each_time(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    keys, config = tmp_path / ".aws" / "credentials", tmp_path / ".aws" / "config"
    environment = {"HOME": str(tmp_path)}
    assert credentials.from_files(environment) is None
    config.write_text("[default]\nregion = eu-north-1\n[profile work]\nregion = us-west-2\n")
    keys.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = first\n")
    read = credentials.from_files(environment)
    assert read is not None
    found = read()
    assert (found["access_key_id"], found["secret_access_key"], found["token"]) == (
        "A",
        "first",
        None,
    )
    keys.write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = second\naws_session_token = t\n"
    )
    assert (read()["secret_access_key"], read()["token"]) == ("second", "t")
    assert credentials.profile_of(environment)["region"] == "eu-north-1"
    work = {**environment, "AWS_PROFILE": "work"}
    assert credentials.profile_of(work) == {"region": "us-west-2"}
    assert credentials.from_files(work) is None


@pytest.mark.parametrize("text", ["no section\n", "[default\n", "[other]\nx = y\n"])
def test_files_that_cannot_be_read_say_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "HOME": str(tmp_path)}
    assert credentials.profile_of(environment) == {}


def test_the_environment_comes_first(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("[default]\naws_access_key_id = A\n")
    environment = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys")}
    assert credentials.from_files(environment) is not None
    assert credentials.from_files({**environment, "AWS_ACCESS_KEY_ID": "B"}) is None


def test_a_package_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    opening.require_package(parse_url("file:///mnt?cap=1GiB"))
    with pytest.raises(StartupError, match=r"needs the package obstore.*pip install obstore"):
        opening.require_package(parse_url("s3://bucket?cap=1GiB"))
