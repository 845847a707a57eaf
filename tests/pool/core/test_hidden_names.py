"""A core whose drive does not learn names: what an engine says changes nobody else's."""

from functools import partial
from pathlib import Path

import pytest
from tests.core_harness import Client, CoreHarness, chain
from tests.encryption_harness import KEYS

from forebay.pool.messages import Ask, Promise
from forebay.record.keyring import Keyring
from forebay.sys.world import World
from forebay.tiers.contract import TierListener
from forebay.tiers.disk import Directory, DiskTier, Options
from forebay.tiers.hidden_names import HiddenNamesTier

MIB = 1 << 20


@pytest.fixture
def core(tmp_path: Path) -> CoreHarness:
    place, keyring = tmp_path / "disk", Keyring(KEYS)
    place.mkdir(mode=0o700)
    directories, options = [Directory(str(place), 64 * MIB)], Options(keyring=keyring)

    def opened(listener: TierListener, world: World) -> HiddenNamesTier:
        opener = partial(DiskTier.open, directories, options, world)
        return HiddenNamesTier(opener, keyring.names, listener)

    return CoreHarness(4 * MIB, store=opened)


def test_a_namespace_of_no_record_is_unknown_and_spoils_no_name(core: CoreHarness) -> None:
    """A part of a block would stay in the cipher, and shift every name that comes after it."""
    engine, hostile = Client("engine"), Client("hostile")
    keys = chain("dialog", 20)
    core.store(engine, keys)
    core.store(engine, chain("what drives it out of DRAM", 100))
    core.settle()
    for namespace in (b"", b"12345", b"n" * 33):
        number, found = core.lookup(hostile, keys, namespace)
        assert (found.known, found.ready) == (0, 0)
        core.pool.handle(hostile, Ask(number, 0, 20, 10_000, stream=False))
        assert core.receive(hostile, Promise).total == 0
    assert core.load(engine, keys) == 20
    core.pool.close(60.0)


def test_a_name_that_is_not_of_whole_blocks_is_refused_and_leaves_nothing_behind() -> None:
    names = Keyring(KEYS).names
    hidden = names.hide(b"n" * 32)
    with pytest.raises(ValueError, match="whole blocks"):
        names.hide(b"12345")
    with pytest.raises(ValueError, match="whole blocks"):
        names.show(b"12345")
    assert (names.hide(b"n" * 32), names.show(hidden)) == (hidden, b"n" * 32)
