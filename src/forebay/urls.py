"""URLs of stores that hosts share; a SettingsError says in one sentence what is wrong with one.

    file:///mnt/shared/forebay?cap=1TiB[&host=NAME]
    s3://BUCKET/PREFIX?cap=1TiB[&endpoint=URL][&region=NAME][&timeout=SECONDS][&host=NAME]

`cap` is what this host may hold there. `host` names this host to the others; without it, a pool has
a name that stays the same as long as the machine's name and the pool's socket do. No URL holds
credentials, and one that does is not repeated in what is said about it. `forebay.terms` has further
options, which every store has.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from forebay.errors import SettingsError
from forebay.quantity import parse_size
from forebay.terms import FREE, S3_STANDARD, TERM_OPTIONS, StorePrices, StoreTerms, parse_terms

SCHEMES: Final = ("file", "s3")
REMOTES_MAX: Final = 8  # stores of one pool: each is a tier, and a label of metrics
REMOTE_BYTES_MIN: Final = 1 << 20
REQUEST_S: Final = 8.0  # of one request to an object store, unless the URL says otherwise
_REQUEST_S_MAX: Final = 3600.0
_EXAMPLES: Final = {
    "file": "file:///mnt/shared/forebay?cap=1TiB",
    "s3": "s3://bucket/forebay?region=eu-central-1&cap=1TiB",
}
_OPTIONS: Final = {
    "file": ("cap", "host"),
    "s3": ("cap", "endpoint", "region", "timeout", "host"),
}
_HOST: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,63}")
_BUCKET: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{1,62}")
_PREFIX: Final = re.compile(r"(/[0-9A-Za-z_-][0-9A-Za-z._-]{0,127}){0,8}")
_REGION: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_ENDPOINT: Final = re.compile(r"https?://[0-9A-Za-z._:\[\]-]{1,255}/?")


class RemoteUrl(NamedTuple):
    """What a URL says."""

    scheme: str
    path: str  # a directory; of an object store, the bucket and the prefix
    cap_bytes: int
    host: str = ""  # empty: whoever opens it has to find one
    endpoint: str = ""  # empty: the environment's, or AWS
    region: str = ""  # likewise
    timeout_s: float = REQUEST_S  # of one request
    terms: StoreTerms = StoreTerms()

    @property
    def prices(self) -> StorePrices:
        """What the store charges: as told, or AWS's, or nothing where there is a server of ours."""
        is_aws = self.scheme == "s3" and not self.endpoint
        return self.terms.prices or (S3_STANDARD if is_aws else FREE)

    @property
    def place(self) -> str:
        """The store without options, for people and metrics."""
        return f"{self.scheme}://{quote(self.path)}"

    def __str__(self) -> str:
        text = f"{self.place}?cap={self.cap_bytes}"
        for name, value in (("endpoint", self.endpoint), ("region", self.region)):
            text += f"&{name}={quote(value, safe=':/')}" if value else ""
        text += f"&timeout={self.timeout_s}" if self.timeout_s != REQUEST_S else ""
        return text + self.terms.query() + (f"&host={self.host}" if self.host else "")


def parse_url(text: str) -> RemoteUrl:
    """Take a URL apart, or say in one sentence why it is none of ours."""
    shown = f"'{text[:80]}'"
    if "@" in text and text.strip().startswith("s3:"):
        raise SettingsError(
            "A URL of S3 holds an @; credentials belong into the environment or a file, as"
            " docs/remote.md says."
        )
    try:
        parts = urlsplit(text.strip())
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise SettingsError(f"{shown} is not a URL; write it as {_EXAMPLES['file']}.") from None
    if parts.scheme not in SCHEMES:
        known = " or ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SettingsError(f"{shown} names no store that is known; it begins with {known}.")
    path = unquote(parts.path)
    if parts.scheme == "s3":
        if parts.fragment or not (_BUCKET.fullmatch(parts.netloc) and _PREFIX.fullmatch(path)):
            raise SettingsError(
                f"{shown} names no bucket and prefix of plain characters; write it as"
                f" {_EXAMPLES['s3']}."
            )
        path = parts.netloc + path
    elif parts.netloc or parts.fragment or "\0" in path or not path.strip("/"):
        raise SettingsError(f"{shown} names no directory; write it as {_EXAMPLES['file']}.")
    chosen = _options(shown, parts.scheme, options)
    return RemoteUrl(
        parts.scheme,
        path.rstrip("/"),
        parse_size(chosen["cap"]),
        chosen.get("host", ""),
        chosen.get("endpoint", "").rstrip("/"),
        chosen.get("region", ""),
        float(chosen.get("timeout", REQUEST_S)),
        parse_terms(chosen),
    )


def _options(shown: str, scheme: str, options: list[tuple[str, str]]) -> dict[str, str]:
    chosen = dict(options)
    known = (*_OPTIONS[scheme], *TERM_OPTIONS)
    if len(chosen) < len(options) or not chosen.keys() <= {*known}:
        raise SettingsError(
            f"{shown} has an option that is unknown or given twice; there are"
            f" {' and '.join(known)}."
        )
    if "cap" not in chosen:
        raise SettingsError(f"{shown} has no cap; write it as {_EXAMPLES[scheme]}.")
    if parse_size(chosen["cap"]) < REMOTE_BYTES_MIN:
        raise SettingsError(f"{shown} has a cap that is too small; write 1MiB or more.")
    if chosen.get("host") and not _HOST.fullmatch(chosen["host"]):
        raise SettingsError(
            f"{shown} names the host with other characters than letters, digits, . _ and -."
        )
    if "endpoint" in chosen and not _ENDPOINT.fullmatch(chosen["endpoint"]):
        raise SettingsError(
            f"{shown} has an endpoint that is none; write it as endpoint=https://HOST:PORT."
        )
    if "region" in chosen and not _REGION.fullmatch(chosen["region"]):
        raise SettingsError(f"{shown} has a region that is none; write it as region=us-east-1.")
    if "timeout" in chosen and not _is_timeout(chosen["timeout"]):
        raise SettingsError(
            f"{shown} has a timeout that is none; write it in seconds, as timeout={REQUEST_S:g}."
        )
    return chosen


def _is_timeout(text: str) -> bool:
    try:
        return 0.0 < float(text) <= _REQUEST_S_MAX
    except ValueError:
        return False
