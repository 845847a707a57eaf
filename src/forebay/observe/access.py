"""Who may ask: the address that is listened at, the token, and the Host header.

An address other than loopback is refused without a token. At loopback the Host header must name
this host, so that a page of somebody else's, whose name was made to point here (DNS rebinding),
cannot read in a user's browser what the pool says.
"""

import base64
import binascii
import hmac
import ipaddress
from typing import Final, Self

from forebay.errors import SettingsError, StartupError
from forebay.files import read_regular
from forebay.settings import Settings, parse_address

TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN_BYTES_MAX: Final = 4096
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Access:
    """Decides on requests; holds nothing that changes."""

    def __init__(self, address: str, port: int, token: bytes | None) -> None:
        self.address = address
        self.port = port  # 0: any
        self._token = token
        self._is_local = _is_loopback(address)

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """As the settings say; None: nowhere. StartupError: a public address without a token."""
        found = parse_address(settings.metrics_address)
        if found is None:
            return None
        token = _read_token(settings.metrics_token_file) if settings.metrics_token_file else None
        if token is None and not _is_loopback(found[0]):
            raise StartupError(
                f"metrics_address {settings.metrics_address} can be reached from other hosts and"
                " needs a token; name a file that holds one with --metrics-token-file."
            )
        return cls(*found, token)

    @property
    def needs_token(self) -> bool:
        """Whether a token must be presented."""
        return self._token is not None

    def is_host_ours(self, host: str | None) -> bool:
        """Whether a request's Host header may be meant for us; None: it has none."""
        if host is None:
            return False
        if not self._is_local:
            return True  # names of this host are not known here; the token protects it
        name = host.strip().lower()
        bare, colon, port = name.rpartition(":")
        if colon and port.isdecimal():
            name = bare
        name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        return name in _LOCAL_NAMES or name == self.address

    def is_allowed(self, authorization: str | None) -> bool:
        """Whether a request presents the token, where one is needed."""
        if self._token is None:
            return True
        return hmac.compare_digest(_presented(authorization or ""), self._token)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _presented(authorization: str) -> bytes:
    """The token of an Authorization header: a bearer's, or the password of any user."""
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
        token = read_regular(path, _TOKEN_BYTES_MAX).strip()
    except SettingsError as error:
        raise StartupError(f"metrics_token_file: {error}") from None
    if len(token) < TOKEN_CHARACTERS_MIN or len(token.split()) != 1 or not token.isascii():
        raise StartupError(
            f"metrics_token_file '{path}' needs one word of {TOKEN_CHARACTERS_MIN} or more letters"
            " and digits; make one with: openssl rand -hex 32"
        )
    return token
