"""URLs of stores that hosts share; a SettingsError says in one sentence what is wrong with one.

    file:///mnt/shared/forebay?cap=1TiB[&host=NAME]
    s3://BUCKET/PREFIX?cap=1TiB[&endpoint=URL][&region=NAME][&timeout=SECONDS][&host=NAME]
    valkey://HOST[:PORT][/DATABASE[/PREFIX]]?cap=64GiB[&user=NAME][&password_file=FILE][&ca=FILE]
        [&cert=FILE&key=FILE][&ttl=SECONDS][&timeout=SECONDS][&host=NAME]
    mooncake://MASTER[:PORT][/PREFIX]?cap=64GiB[&protocol=tcp|rdma][&devices=NAMES][&address=IP]
        [&replicas=N][&host=NAME]

`valkeys://` is the same over TLS; `redis://` and `rediss://` are other names of the two.
`cap` is how much this host may hold there. `host` names this host to the others; without it, a pool
has a name that stays the same as long as the machine's name and the pool's socket do. URLs must not
contain credentials; if one does, error messages do not repeat it. `forebay.terms` has further
options, which every store has: what is sent, budgets, prices, a warm start.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from forebay.errors import SettingsError
from forebay.quantity import parse_size
from forebay.terms import FREE, S3_STANDARD, TERM_OPTIONS, StorePrices, StoreTerms, parse_terms

VALKEY: Final = ("valkey", "valkeys", "redis", "rediss")
SCHEMES: Final = ("file", "s3", *VALKEY, "mooncake")
REMOTES_MAX: Final = 8  # stores of one pool: each is a tier, and a label of metrics
REMOTE_BYTES_MIN: Final = 1 << 20
REQUEST_S: Final = 8.0  # default timeout of one request to an object store
_REQUEST_S_MAX: Final = 3600.0
_EXAMPLES: Final = {
    "file": "file:///mnt/shared/forebay?cap=1TiB",
    "s3": "s3://bucket/forebay?region=eu-central-1&cap=1TiB",
    **{scheme: f"{scheme}://cache.example:6379/0/forebay?cap=64GiB" for scheme in VALKEY},
    "mooncake": "mooncake://master.example:50051/forebay?cap=64GiB",
}
_OPTIONS: Final = {
    "file": ("cap", "host"),
    "s3": ("cap", "endpoint", "region", "timeout", "host"),
    **dict.fromkeys(VALKEY, ("cap", "user", "password_file", "ttl", "timeout", "host")),
    **dict.fromkeys(
        ("valkeys", "rediss"),
        ("cap", "user", "password_file", "ca", "cert", "key", "ttl", "timeout", "host"),
    ),
    "mooncake": ("cap", "protocol", "devices", "address", "replicas", "host"),
}
# Options that have fields of their own.
_OF_ALL: Final = ("cap", "endpoint", "region", "timeout", "host", *TERM_OPTIONS)
_HOST: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,63}")
_BUCKET: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{1,62}")
_PREFIX: Final = re.compile(r"(/[0-9A-Za-z_-][0-9A-Za-z._-]{0,127}){0,8}")
_REGION: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_ENDPOINT: Final = re.compile(r"https?://[0-9A-Za-z._:\[\]-]{1,255}/?")
_SERVER: Final = re.compile(r"([0-9A-Za-z._-]{1,255}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_DATABASE: Final = re.compile(
    r"/?|/([0-9]{1,4})/?|/([0-9]{1,4})/([0-9A-Za-z_-][0-9A-Za-z._-]{0,63})"
)
_SECRET: Final = re.compile(r"@|[?&]pass(word)?=")
_USER: Final = re.compile(r"[^\s\0]{1,128}")
_TTL: Final = re.compile(r"[1-9][0-9]{0,8}")
_VALKEY_PORT: Final = 6379
_MOONCAKE_PORT: Final = 50051
_ONE_PART: Final = re.compile(r"/?|/([0-9A-Za-z_-][0-9A-Za-z._-]{0,63})/?")
_DEVICES: Final = re.compile(r"[0-9A-Za-z_.,-]{1,255}")
_ADDRESS: Final = re.compile(r"[0-9A-Za-z.:-]{1,255}")


def _is_timeout(text: str) -> bool:
    try:
        return 0.0 < float(text) <= _REQUEST_S_MAX
    except ValueError:
        return False


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text


# By option: what a value must match, and the error if it does not.
_RULES: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "host": (
        lambda text: not text or _HOST.fullmatch(text),
        "names the host with other characters than letters, digits, . _ and -",
    ),
    "endpoint": (
        _ENDPOINT.fullmatch,
        "has an endpoint that is none; write it as endpoint=https://HOST:PORT",
    ),
    "region": (_REGION.fullmatch, "has a region that is none; write it as region=us-east-1"),
    "timeout": (
        _is_timeout,
        f"has a timeout that is none; write up to {_REQUEST_S_MAX:g} s, as timeout={REQUEST_S:g}",
    ),
    "user": (_USER.fullmatch, "names no user; write it as user=forebay"),
    "ttl": (_TTL.fullmatch, "has a ttl that is none; write it in seconds, as ttl=604800"),
    "password_file": (_is_path, "has a password_file that is no absolute path"),
    "ca": (_is_path, "has a ca that is no absolute path"),
    "cert": (_is_path, "has a cert that is no absolute path"),
    "key": (_is_path, "has a key that is no absolute path"),
    "protocol": (("tcp", "rdma").__contains__, "has a protocol that is none; write tcp or rdma"),
    "devices": (_DEVICES.fullmatch, "names no devices; write them as devices=mlx5_0,mlx5_1"),
    "address": (_ADDRESS.fullmatch, "has an address that is none; write it as address=10.0.0.5"),
    "replicas": (re.compile("[1-8]").fullmatch, "has replicas that are none; write 1 to 8"),
}


class RemoteUrl(NamedTuple):
    """A parsed URL."""

    scheme: str
    path: str  # a directory; for other stores, the bucket or server, and the prefix in it
    cap_bytes: int
    host: str = ""  # empty: whoever opens it chooses one
    endpoint: str = ""  # empty: the environment's, or AWS
    region: str = ""  # empty: the environment's, or AWS's default
    timeout_s: float = REQUEST_S  # of one request
    terms: StoreTerms = StoreTerms()
    more: tuple[tuple[str, str], ...] = ()  # options that only this kind of store has

    @property
    def prices(self) -> StorePrices:
        """The store's prices: as given, or AWS's for S3 without an endpoint; else none."""
        is_aws = self.scheme == "s3" and not self.endpoint
        return self.terms.prices or (S3_STANDARD if is_aws else FREE)

    def option(self, name: str) -> str:
        """The value of an option in `more`; empty if it was not given."""
        return dict(self.more).get(name, "")

    @property
    def place(self) -> str:
        """The store without options, for people and metrics."""
        return f"{self.scheme}://{quote(self.path, safe='/:[]')}"

    def __str__(self) -> str:
        text = f"{self.place}?cap={self.cap_bytes}"
        for name, value in (("endpoint", self.endpoint), ("region", self.region), *self.more):
            text += f"&{name}={quote(value, safe=':/')}" if value else ""
        text += f"&timeout={self.timeout_s}" if self.timeout_s != REQUEST_S else ""
        return text + self.terms.query() + (f"&host={self.host}" if self.host else "")


def parse_url(text: str) -> RemoteUrl:
    """Parse a URL; a SettingsError says in one sentence why it is not accepted."""
    shown = f"'{text[:80]}'"
    if _SECRET.search(text) and not text.strip().startswith("file:"):
        raise SettingsError(
            "A URL of a store holds credentials, or an @; they belong into the environment or a"
            " file, as docs/remote.md says."
        )
    try:
        parts = urlsplit(text.strip())
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise SettingsError(f"{shown} is not a URL; write it as {_EXAMPLES['file']}.") from None
    if parts.scheme not in SCHEMES:
        known = " or ".join(f"{scheme}://" for scheme in SCHEMES)
        raise SettingsError(f"{shown} names no store that is known; it begins with {known}.")
    path = _path(shown, parts)
    chosen = _options(shown, parts.scheme, options)
    return RemoteUrl(
        parts.scheme,
        path,
        parse_size(chosen["cap"]),
        chosen.get("host", ""),
        chosen.get("endpoint", "").rstrip("/"),
        chosen.get("region", ""),
        float(chosen.get("timeout", REQUEST_S)),
        parse_terms(chosen),
        tuple((name, value) for name, value in chosen.items() if name not in _OF_ALL),
    )


def _path(shown: str, parts: SplitResult) -> str:
    """The place in a store as one text, which is the same however the URL was written."""
    path, example = unquote(parts.path), _EXAMPLES[parts.scheme]
    if parts.scheme == "s3":
        if parts.fragment or not (_BUCKET.fullmatch(parts.netloc) and _PREFIX.fullmatch(path)):
            raise SettingsError(
                f"{shown} names no bucket and prefix of plain characters; write it as {example}."
            )
        return (parts.netloc + path).rstrip("/")
    if parts.scheme in VALKEY:
        server, inner = _server(parts, _VALKEY_PORT), _DATABASE.fullmatch(path)
        if server is None or inner is None:
            raise SettingsError(
                f"{shown} names no server, database and prefix; write it as {example}."
            )
        return f"{server}/{int(inner[1] or inner[2] or 0)}/{inner[3] or 'forebay'}"
    if parts.scheme == "mooncake":
        master, prefix = _server(parts, _MOONCAKE_PORT), _ONE_PART.fullmatch(path)
        if master is None or prefix is None:
            raise SettingsError(f"{shown} names no master and prefix; write it as {example}.")
        return f"{master}/{prefix[1] or 'forebay'}"
    if parts.netloc or parts.fragment or "\0" in path or not path.strip("/"):
        raise SettingsError(f"{shown} names no directory; write it as {example}.")
    return path.rstrip("/")


def _server(parts: SplitResult, default_port: int) -> str | None:
    """A URL's server as HOST:PORT; None if it has none."""
    found = _SERVER.fullmatch(parts.netloc)
    if found is None or parts.fragment:
        return None
    port = int((found[2] or f":{default_port}")[1:])
    return f"{found[1].lower()}:{port}" if 0 < port < 1 << 16 else None


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
    for name, (is_one, sentence) in _RULES.items():
        if name in chosen and not is_one(chosen[name]):
            raise SettingsError(f"{shown} {sentence}.")
    if ("cert" in chosen) != ("key" in chosen):
        raise SettingsError(f"{shown} has only one of cert and key; a certificate needs both.")
    return chosen
