"""URLs of stores that hosts share; a SettingsError says in one sentence what is wrong with one.

    file:///mnt/shared/forebay?cap=1TiB[&host=NAME]

`cap` is what this host may hold there. `host` names this host to the others; without it, a pool has
a name that stays the same as long as the machine's name and the pool's socket do.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from forebay.errors import SettingsError
from forebay.quantity import parse_size

SCHEMES: Final = ("file",)
REMOTES_MAX: Final = 8  # stores of one pool: each is a tier, and a label of metrics
REMOTE_BYTES_MIN: Final = 1 << 20
_EXAMPLE: Final = "file:///mnt/shared/forebay?cap=1TiB"
_OPTIONS: Final = ("cap", "host")
_HOST: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,63}")


class RemoteUrl(NamedTuple):
    """What a URL says."""

    scheme: str
    path: str
    cap_bytes: int
    host: str = ""  # empty: whoever opens it has to find one

    @property
    def place(self) -> str:
        """The store without options, for people and metrics."""
        return f"{self.scheme}://{quote(self.path)}"

    def __str__(self) -> str:
        host = f"&host={self.host}" if self.host else ""
        return f"{self.place}?cap={self.cap_bytes}{host}"


def parse_url(text: str) -> RemoteUrl:
    """Take a URL apart, or say in one sentence why it is none of ours."""
    shown = f"'{text[:80]}'"
    try:
        parts = urlsplit(text.strip())
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise SettingsError(f"{shown} is not a URL; write it as {_EXAMPLE}.") from None
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SettingsError(f"{shown} names no store that is known; it begins with {known}.")
    path = unquote(parts.path)
    if parts.netloc or parts.fragment or "\0" in path or not path.strip("/"):
        raise SettingsError(f"{shown} names no directory; write it as {_EXAMPLE}.")
    cap_bytes, host = _options(shown, options)
    return RemoteUrl(parts.scheme, path.rstrip("/"), cap_bytes, host)


def _options(shown: str, options: list[tuple[str, str]]) -> tuple[int, str]:
    chosen = dict(options)
    if len(chosen) < len(options) or not chosen.keys() <= {*_OPTIONS}:
        raise SettingsError(
            f"{shown} has an option that is unknown or given twice; there are"
            f" {' and '.join(_OPTIONS)}."
        )
    if "cap" not in chosen:
        raise SettingsError(f"{shown} has no cap; write it as {_EXAMPLE}.")
    cap_bytes, host = parse_size(chosen["cap"]), chosen.get("host", "")
    if cap_bytes < REMOTE_BYTES_MIN:
        raise SettingsError(f"{shown} has a cap that is too small; write 1MiB or more.")
    if host and not _HOST.fullmatch(host):
        raise SettingsError(
            f"{shown} names the host with other characters than letters, digits, . _ and -."
        )
    return cap_bytes, host
