"""The keys of a pool that encrypts, read at its start and at every rotation."""

import logging
from typing import Final

from forebay.errors import SettingsError
from forebay.record.keyring import LIBRARY_VERSION, Keyring, MasterKeys
from forebay.sys.protection import secret_source

_SHOWN_BYTES: Final = 4  # bytes of a key's id that people are shown
_WAITING: Final = range(43, 50)  # releases of cryptography that hold the GIL while they encrypt
_log: Final = logging.getLogger("forebay")


class Encryption:
    """The `encryption` setting in force."""

    def __init__(self, source: str) -> None:
        """Read the keys; a StartupError says in one sentence why that failed."""
        self._source = source
        self.keyring = Keyring(self._read())
        if int(LIBRARY_VERSION.partition(".")[0]) in _WAITING:
            _log.warning(
                "cryptography %s lets no other thread run while it encrypts, so everything waits;"
                " install 50 or later",
                LIBRARY_VERSION,
            )

    def reread(self) -> str:
        """Use the keys that the source gives now; returns the short id of the current one.

        Waits for the source. A StartupError if it gives no usable keys: then nothing changes.
        """
        if secret_source.kind_of(self._source) in secret_source.READ_ONCE:
            raise SettingsError(
                "keys from a descriptor or the environment are read once; restart the pool with"
                " the new ones."
            )
        self.keyring.replace(self._read())
        return shown(self.keyring.keys)

    def _read(self) -> MasterKeys:
        text = secret_source.read_secret(self._source)
        try:
            return MasterKeys.parse(text)
        except SettingsError as error:
            raise SettingsError(f"'{self._source[:80]}': {error}") from None


def shown(keys: MasterKeys) -> str:
    """The current key's id, as people are shown it."""
    return keys.masters[0].id[:_SHOWN_BYTES].hex()
