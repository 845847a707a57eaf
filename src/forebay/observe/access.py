"""Who may use the HTTP port: the address it listens at, the token, and the Host header.

An address other than loopback is refused without a token. At loopback the Host header must name
this host, so that a foreign web page whose name was made to point here (DNS rebinding) cannot read
the pool's answers in a user's browser.

Recent requests have ids that clients chose. At the pool's socket only operators may see them. Here,
with `metrics_requests=operators`, it is whoever presents the token, and processes on this host that
the kernel reports as an operator's.
"""

import base64
import binascii
import hmac
import ipaddress
import os
import shlex
import stat
from collections.abc import Callable, Collection
from typing import Final, Self

from forebay.errors import SettingsError, StartupError
from forebay.files import open_regular, read_opened
from forebay.settings import Settings, parse_address

TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN_BYTES_MAX: Final = 4096
_BY_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Access:
    """Decides who may send requests; immutable."""

    def __init__(
        self,
        address: str,
        port: int,
        token: bytes | None,
        requests: str = "all",
        operators: Collection[int] = (),
    ) -> None:
        """`requests` is one of `REQUESTS_SHOWN`; `operators` are user ids."""
        self.address = address
        self.port = port  # 0: any
        self._token = token
        self._is_local = _is_loopback(address)
        self._requests, self._operators = requests, frozenset(operators)

    @classmethod
    def of(cls, settings: Settings, operators: Collection[int] = ()) -> Self | None:
        """As set; None if no address is. StartupError for a public address without a token."""
        found = parse_address(settings.metrics_address)
        if found is None:
            return None
        token = _read_token(settings.metrics_token_file) if settings.metrics_token_file else None
        if token is None and not _is_loopback(found[0]):
            raise StartupError(
                f"metrics_address {settings.metrics_address} can be reached from other hosts and"
                " needs a token; name a file that holds one with --metrics-token-file."
            )
        return cls(*found, token, settings.metrics_requests, operators)

    @property
    def needs_token(self) -> bool:
        """Whether clients must present a token."""
        return self._token is not None

    def is_host_ours(self, host: str | None) -> bool:
        """Whether a request's Host header can mean this host; `host` is None if it has none."""
        if host is None:
            return False
        if not self._is_local:
            return True  # the names of this host are not known; the token protects it
        name = host.strip().lower()
        bare, colon, port = name.rpartition(":")
        if colon and port.isdecimal():
            name = bare
        name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        return name in _LOCAL_NAMES or name == self.address

    def refusal_of_requests(self, peer_uid: Callable[[], int | None]) -> str | None:
        """In one sentence, why an allowed client may not see recent requests; None if it may."""
        if self._requests == "none":
            return "this pool shows no requests over HTTP (metrics_requests=none); see: forebay why"
        if self._requests == "all" or self.needs_token or peer_uid() in self._operators:
            return None
        return (
            "recent requests are shown to operators of this pool: ask as one of its operators,"
            " set metrics_token_file, or metrics_requests=all"
        )

    def is_allowed(self, authorization: str | None) -> bool:
        """Whether a request presents the token, if one is needed."""
        if self._token is None:
            return True
        return hmac.compare_digest(_presented(authorization or ""), self._token)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _presented(authorization: str) -> bytes:
    """The token in an Authorization header: a bearer token, or the password of any user."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode(errors="replace")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _read_token(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            token = read_opened(file, _TOKEN_BYTES_MAX).strip()
    except SettingsError as error:
        raise StartupError(f"metrics_token_file: {error}") from None
    # Clusters provide secrets as files of root that one group may read.
    is_given = status.st_uid == 0 and not status.st_mode & (_BY_OTHERS & ~stat.S_IRGRP)
    if status.st_mode & _BY_OTHERS and not is_given:
        raise StartupError(
            f"metrics_token_file '{path}' can be read or changed by other users; run: chmod 600"
            f" {shlex.quote(path)}"
        )
    if len(token) < TOKEN_CHARACTERS_MIN or len(token.split()) != 1 or not token.isascii():
        raise StartupError(
            f"metrics_token_file '{path}' needs one word of {TOKEN_CHARACTERS_MIN} or more letters"
            " and digits; make one with: openssl rand -hex 32"
        )
    return token
