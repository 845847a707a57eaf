"""What a pool says of the library that encrypts for it."""

import logging
from pathlib import Path

import pytest

from forebay.pool import encryption
from forebay.pool.encryption import Encryption


@pytest.mark.parametrize(
    ("version", "is_warned"),
    [("42.0.8", False), ("43.0.0", True), ("49.0.0", True), ("50.0.0", False)],
)
def test_a_library_that_holds_up_other_threads_is_named(
    version: str,
    is_warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"names={'1' * 64} key={'2' * 64}")
    keys.chmod(0o600)
    monkeypatch.setattr(encryption, "LIBRARY_VERSION", version)
    with caplog.at_level(logging.WARNING):
        Encryption(f"file:{keys}")
    assert (version in caplog.text) == is_warned
