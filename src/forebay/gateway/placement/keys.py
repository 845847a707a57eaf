"""API keys at run time: which key a token belongs to, and whether it may have another request."""

import hashlib
import hmac
from typing import Final

from forebay.gateway.config import KeySetting
from forebay.gateway.placement.request import NotPlaced

_MINUTE_S: Final = 60.0
_RETRY_S: Final = 1  # if one of the key's own requests has to end first


class KeyState:
    """One key: its requests in the gateway, and how many tokens it has left."""

    def __init__(self, setting: KeySetting, now: float) -> None:
        self.setting = setting
        self.requests = 0  # in the gateway now
        self._tokens = float(setting.tokens_a_minute)  # left; negative if it used too many
        self._filled = now

    def refusal(self, now: float) -> NotPlaced | None:
        """Why one more request of this key is refused now; None if it is not."""
        setting = self.setting
        if setting.requests_max and self.requests >= setting.requests_max:
            why = f"this key has {self.requests} requests under way, which is its limit"
            return NotPlaced(429, why, _RETRY_S)
        rate_s = setting.tokens_a_minute / _MINUTE_S
        if rate_s:
            more = (now - self._filled) * rate_s
            self._tokens = min(float(setting.tokens_a_minute), self._tokens + more)
            self._filled = now
            if self._tokens <= 0:
                why = f"this key has used its {setting.tokens_a_minute} tokens a minute"
                return NotPlaced(429, why, int(-self._tokens / rate_s) + 1)
        return None

    def took(self, tokens: float) -> None:
        """Charge this key for tokens that a request took."""
        self._tokens -= tokens if self.setting.tokens_a_minute else 0.0


class KeyRing:
    """All keys, found by token."""

    def __init__(self, keys: tuple[KeySetting, ...], now: float) -> None:
        self.states = {key.name: KeyState(key, now) for key in keys}
        self._by_hash = {key.token_sha256: self.states[key.name] for key in keys}
        self._everybody = self._by_hash.get("")

    def find(self, token: str) -> KeyState | None:
        """The key of this token; None if there is none."""
        if self._everybody is not None:
            return self._everybody
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
        found = None
        for known, state in self._by_hash.items():  # all of them, so that timing reveals nothing
            found = state if hmac.compare_digest(known, digest) else found
        return found
