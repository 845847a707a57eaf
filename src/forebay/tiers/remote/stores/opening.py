"""Which store a URL means; a SettingsError says in one sentence what is wrong with one.

    file:///mnt/shared/forebay?cap=1TiB[&host=NAME]

`cap` is what this host may hold there. `host` names this host to the others; without it, the pool
finds a name that stays the same as long as the machine's and the pool's socket do.
"""

from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from forebay.errors import SettingsError
from forebay.quantity import parse_size
from forebay.tiers.remote.options import CAP_BYTES_MIN
from forebay.tiers.remote.store import ObjectStore, is_name
from forebay.tiers.remote.stores.directory import DirectoryStore

SCHEMES: Final = ("file",)
_EXAMPLE: Final = "file:///mnt/shared/forebay?cap=1TiB"
_OPTIONS: Final = ("cap", "host")


class RemoteUrl(NamedTuple):
    """What a URL says."""

    scheme: str
    path: str
    cap_bytes: int
    host: str  # empty: whoever opens it has to find one
    text: str  # without options; for people and metrics


def parse_url(text: str) -> RemoteUrl:
    """Take a URL apart, or say in one sentence why it is none of ours."""
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise SettingsError(f"'{text[:80]}' is not a URL; write it as {_EXAMPLE}.") from None
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SettingsError(f"'{text[:80]}' names no store that is known; it begins with {known}.")
    path = unquote(parts.path)
    if parts.netloc or parts.fragment or "\0" in path or not path.strip("/"):
        raise SettingsError(f"'{text[:80]}' names no directory; write it as {_EXAMPLE}.")
    chosen = dict(options)
    wrong = next((name for name in chosen if name not in _OPTIONS), None)
    if wrong is not None or len(chosen) < len(options):
        raise SettingsError(
            f"'{text[:80]}' has an option that is unknown or given twice; there are"
            f" {' and '.join(_OPTIONS)}."
        )
    if "cap" not in chosen:
        raise SettingsError(f"'{text[:80]}' has no cap; write it as {_EXAMPLE}.")
    cap_bytes, host = parse_size(chosen["cap"]), chosen.get("host", "")
    if cap_bytes < CAP_BYTES_MIN:
        raise SettingsError(f"'{text[:80]}' has a cap that is too small; write 1MiB or more.")
    if host and ("/" in host or not is_name(host)):
        raise SettingsError(
            f"'{text[:80]}' names the host with other characters than letters, digits, . _ and -."
        )
    return RemoteUrl(parts.scheme, path, cap_bytes, host, f"{parts.scheme}://{path}")


def open_store(url: str, host: str) -> ObjectStore:
    """The store of a URL; nothing is touched before its first call."""
    return DirectoryStore(parse_url(url).path, host)
