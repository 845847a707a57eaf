"""What tests of encrypted tiers share: keys, and tiers that have them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tests.disk_harness import CAP_BYTES, CLOSE_S, SMALL
from tests.remote_harness import PATIENT, url_of

from forebay.record.keyring import Keyring, MasterKeys
from forebay.sys.disk import Disk
from forebay.sys.world import World
from forebay.tiers.contract import TierListener
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.hidden_names import HiddenNamesTier
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.tier import RemoteTier

NAMES_WORD: Final = "names=" + "11" * 32
OLD_WORD: Final = "key=" + "22" * 32
NEW_WORD: Final = "key=" + "33" * 32
KEYS: Final = MasterKeys.parse(f"{NAMES_WORD} {OLD_WORD}")
ROTATED_KEYS: Final = MasterKeys.parse(f"{NAMES_WORD} {NEW_WORD} {OLD_WORD}")


def encrypted(options: Options = SMALL, keys: MasterKeys = KEYS) -> Options:
    """The same options, with keys."""
    return replace(options, keyring=Keyring(keys))


def open_encrypted(
    place: Path, listener: TierListener | None = None, keyring: Keyring | None = None
) -> HiddenNamesTier:
    """An encrypted disk tier in `place`, as a pool has it."""
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    keyring = keyring or Keyring(KEYS)
    options = replace(SMALL, keyring=keyring)
    opener = partial(DiskTier.open, [Directory(str(place), CAP_BYTES)], options, None)
    return HiddenNamesTier(opener, keyring.names, listener or TierListener())


def open_encrypted_remote(
    place: Path,
    listener: TierListener | None = None,
    *,
    host: str = "a",
    keyring: Keyring | None = None,
    options: RemoteOptions = PATIENT,
) -> HiddenNamesTier:
    """An encrypted remote tier on a directory, as a pool has it."""
    keyring = keyring or Keyring(KEYS)
    options = replace(options, keyring=keyring)
    opener = partial(RemoteTier.open, url_of(place), host, options, None)
    return HiddenNamesTier(opener, keyring.names, listener or TierListener())


@contextmanager
def opened_disk(
    place: Path, keys: MasterKeys | None = KEYS, disk: Disk | None = None
) -> Iterator[DiskTier]:
    """The disk tier alone, by the names that the medium has; closed afterwards."""
    place.mkdir(mode=0o700, exist_ok=True)
    place.chmod(0o700)
    options = SMALL if keys is None else encrypted(keys=keys)
    directories = [Directory(str(place), CAP_BYTES)]
    tier = DiskTier.open(directories, options, World(disk or Disk()))
    try:
        yield tier
    finally:
        tier.close(CLOSE_S)
