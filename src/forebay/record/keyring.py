"""Keys of encrypted records: what an operator gives, and what is derived from it. No I/O.

An operator gives one *names key* and one or more *master keys*, the first of which is the current
one. Nothing is encrypted with a master key: a key for one use is derived from it and 32 random
bytes, so that no key encrypts two messages and a nonce cannot be used twice.

`MasterKeys` are values; `Keyring` holds those in force, which `forebay rotate` replaces.
"""

import hashlib
import hmac
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

import cryptography
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from forebay.errors import SettingsError
from forebay.record.header import KEY_ID_BYTES, ROOT, SALT_BYTES

LIBRARY_VERSION: Final = cryptography.__version__
SECRET_BYTES: Final = 32
MASTERS_MAX: Final = 16  # of one keyring; records under older keys have long been evicted
_BLOCK_BYTES: Final = 16
_CHECK_BYTES: Final = 16


class DataKey(NamedTuple):
    """A key from which keys of records are derived."""

    id: bytes  # in the header of every record under it; reveals nothing of the secret
    secret: bytes


class RecordKeys(ABC):
    """The data keys of one medium. Any thread may call."""

    @abstractmethod
    def current(self, tenant: bytes) -> DataKey | None:
        """The key for a tenant's new records; None if there is none now. May wait for I/O."""

    @abstractmethod
    def find(self, key_id: bytes) -> DataKey | None:
        """The key with this id, if it is in memory; else None."""


class MasterKeys(NamedTuple):
    """The keys that an operator gave."""

    names: bytes  # encrypts the names of records on a medium; never changes
    masters: tuple[DataKey, ...]  # the current one first

    @classmethod
    def parse(cls, text: str) -> "MasterKeys":
        """Parse `names=HEX key=HEX key=HEX …`; a SettingsError tells what is wrong, but no key."""
        names: list[bytes] = []
        masters: list[bytes] = []
        for line in text.splitlines():
            for word in line.partition("#")[0].split():
                kind, _, digits = word.partition("=")
                if kind not in {"names", "key"}:
                    raise SettingsError("a word is neither names=HEX nor key=HEX.")
                (names if kind == "names" else masters).append(_secret(kind, digits))
        if len(names) != 1:
            raise SettingsError(f"there are {len(names)} names= where one is needed.")
        if not 0 < len(masters) <= MASTERS_MAX:
            raise SettingsError(f"there are {len(masters)} key= where 1 to {MASTERS_MAX} may be.")
        if len({*names, *masters}) != 1 + len(masters):
            raise SettingsError("the same key is there twice.")
        return cls(names[0], tuple(DataKey(_id(secret), secret) for secret in masters))

    @classmethod
    def create(cls) -> "MasterKeys":
        """Keys of random bytes, for tests and benchmarks."""
        return cls.parse(f"{new_word('names')} {new_word('key')}")

    def find(self, key_id: bytes) -> DataKey | None:
        """The master key with this id; None if there is none."""
        return next((each for each in self.masters if each.id == key_id), None)

    @property
    def check(self) -> bytes:
        """A value by which a medium tells whether it was written with the same names key."""
        return _derived(self.names, b"", b"names check")[:_CHECK_BYTES]


def new_word(kind: str) -> str:
    """A new random key, as `MasterKeys.parse` reads it."""
    return f"{kind}={secrets.token_hex(SECRET_BYTES)}"


def _secret(kind: str, digits: str) -> bytes:
    try:
        secret = bytes.fromhex(digits)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise SettingsError(f"{kind}= is not followed by {2 * SECRET_BYTES} hex digits.")
    return secret


def _id(secret: bytes) -> bytes:
    return _derived(secret, b"", b"key id")[:KEY_ID_BYTES]


def _derived(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(salt, key=secret, digest_size=SECRET_BYTES, person=purpose).digest()


class Keyring:
    """The keys in force. Any thread may call."""

    def __init__(self, keys: MasterKeys) -> None:
        self.keys = keys
        self.names = NameCipher(keys.names)

    def replace(self, keys: MasterKeys) -> None:
        """Use other keys from now on; SettingsError if the names key is not the same."""
        if not hmac.compare_digest(keys.names, self.keys.names):  # verify: names key stays
            raise SettingsError("names= has changed, and nothing could be found; put it back.")
        self.keys = keys


class StoreKeys(RecordKeys):
    """Data keys of stores that hosts share: derived from master keys, so that all hosts agree."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def current(self, tenant: bytes) -> DataKey | None:
        """See RecordKeys. One key for all tenants: other hosts could not know a tenant's own."""
        del tenant
        return _for_stores(self._keyring.keys.masters[0])

    def find(self, key_id: bytes) -> DataKey | None:
        """See RecordKeys."""
        master = self._keyring.keys.find(key_id)
        return None if master is None else _for_stores(master)


def _for_stores(master: DataKey) -> DataKey:
    return DataKey(master.id, _derived(master.secret, b"", b"stores"))


def new_salt() -> bytes:
    """New random bytes, from which a key for one use is derived."""
    return secrets.token_bytes(SALT_BYTES)


def record_secret(key: DataKey, salt: bytes) -> bytes:
    """The key of one record."""
    return _derived(key.secret, salt, b"record")


def wrapping_secret(master: DataKey, salt: bytes) -> bytes:
    """The key with which one data key is encrypted."""
    return _derived(master.secret, salt, b"wrapping")


class NameCipher:
    """Encrypts names for a medium, each block of 16 bytes separately.

    Namespaces, keys and parents are hashes already: the medium only sees which names are equal,
    which it has to know. The first half of an encrypted key is the encrypted short key. ROOT and
    the default tenant stay unencrypted.
    """

    def __init__(self, names_key: bytes) -> None:
        secret = _derived(names_key, b"", b"names")
        self._cipher = Cipher(algorithms.AES(secret), modes.ECB())  # noqa: S305 - see above
        self._local = threading.local()  # contexts belong to one thread

    def hide(self, name: bytes) -> bytes:
        """Encrypt a name of whole blocks."""
        if name == ROOT[: len(name)]:
            return name
        _refuse_part_of_block(name)
        if not hasattr(self._local, "hiding"):
            self._local.hiding = self._cipher.encryptor()
        hidden: bytes = self._local.hiding.update(name)
        return hidden

    def show(self, hidden: bytes) -> bytes:
        """Decrypt a name."""
        if hidden == ROOT[: len(hidden)]:
            return hidden
        _refuse_part_of_block(hidden)
        if not hasattr(self._local, "showing"):
            self._local.showing = self._cipher.decryptor()
        name: bytes = self._local.showing.update(hidden)
        return name

    def hide_all(self, names: Sequence[bytes]) -> list[bytes]:
        """Encrypt names of whole blocks in one call; none of them may be ROOT."""
        if not names:
            return []
        hidden = self.hide(b"".join(names))
        found, at = [], 0
        for name in names:
            found.append(hidden[at : at + len(name)])
            at += len(name)
        return found


def _refuse_part_of_block(name: bytes) -> None:
    """ValueError for a name of partial blocks: the rest would come out before the next name."""
    if len(name) % _BLOCK_BYTES:  # verify: whole blocks
        raise ValueError("a name is not of whole blocks")


assert len(ROOT) % _BLOCK_BYTES == 0
