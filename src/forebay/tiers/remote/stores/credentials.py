"""AWS's own files as a source of credentials, read again every minute.

What the environment, a web identity, a container or an instance provides is obstore's to find and
to renew; it does not read `~/.aws/credentials` and `~/.aws/config`, which this does. Profiles that
name a role or a single sign-on instead of a key are not understood.
"""

import configparser
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypedDict

_FRESH: Final = timedelta(minutes=1)
# Where one of these is set, obstore finds credentials by itself.
_NOT_IN_FILES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class AwsCredential(TypedDict):
    """As obstore takes it."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime  # when the files are read again


def from_files(environment: Mapping[str, str]) -> Callable[[], AwsCredential] | None:
    """Reads the profile's key; None where the files are not the ones to ask, or have none."""
    if any(environment.get(name) for name in _NOT_IN_FILES):
        return None

    def read() -> AwsCredential:
        profile = profile_of(environment)
        return AwsCredential(
            access_key_id=profile["aws_access_key_id"],
            secret_access_key=profile["aws_secret_access_key"],
            token=profile.get("aws_session_token"),
            expires_at=datetime.now(UTC) + _FRESH,
        )

    return read if "aws_access_key_id" in profile_of(environment) else None


def profile_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What both files say of the profile in use; nothing if they cannot be read."""
    name = environment.get("AWS_PROFILE") or "default"
    home = Path(environment.get("HOME") or os.path.sep) / ".aws"
    config = environment.get("AWS_CONFIG_FILE") or home / "config"
    keys = environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"
    section = name if name == "default" else f"profile {name}"
    return {**_section(Path(config), section), **_section(Path(keys), name)}


def _section(path: Path, section: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
        return dict(parser[section])
    except (KeyError, ValueError, OSError, configparser.Error):
        return {}
