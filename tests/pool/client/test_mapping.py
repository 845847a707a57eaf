"""A slab is mapped as the pool says, or not at all: what the pool sends is looked at first."""

import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from forebay.pool.client.slab import MappedSlab, map_slab
from forebay.pool.messages import PROTOCOL, Welcome
from forebay.sys.memory import PAGE_BYTES
from forebay.sys.shared import Segment

Make = Callable[[int], int]


@pytest.fixture
def make() -> Iterator[Make]:
    """Memfds that cannot shrink, of so many pages; of fewer than none, one that can."""
    made: list[int] = []

    def begin(pages: int) -> int:
        made.append(os.memfd_create("of a test", os.MFD_ALLOW_SEALING))
        os.ftruncate(made[-1], abs(pages) * PAGE_BYTES)
        if pages > 0:
            fcntl.fcntl(made[-1], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return made[-1]

    yield begin
    for descriptor in made:
        os.close(descriptor)


def welcome(*pages: int, addresses: int = 16) -> Welcome:
    sizes = [each * PAGE_BYTES for each in pages]
    return Welcome(PROTOCOL, 1, addresses * PAGE_BYTES, PAGE_BYTES, sizes, [])


def test_segments_lie_behind_one_another_and_nothing_beyond_them_is_seen(make: Make) -> None:
    descriptors = [make(1), make(3)]
    slab = map_slab(welcome(1, 3), descriptors)
    assert isinstance(slab, MappedSlab)
    assert slab.size_bytes == 4 * PAGE_BYTES
    view = slab.view(PAGE_BYTES - 2, 5)
    assert view is not None
    view[:] = b"bytes"
    view.release()
    assert os.pread(descriptors[1], 3, 0) == b"tes"
    for offset, length in ((4 * PAGE_BYTES, 1), (3 * PAGE_BYTES, PAGE_BYTES + 1), (-1, 1)):
        assert slab.view(offset, length) is None
    assert slab.add(Segment(make(2), 2 * PAGE_BYTES)) == ""
    assert slab.size_bytes == 6 * PAGE_BYTES
    assert "cannot be mapped" in slab.add(Segment(make(11), 11 * PAGE_BYTES))
    assert slab.close()


def test_a_slab_without_memory_is_a_slab() -> None:
    slab = map_slab(welcome(), [])
    assert isinstance(slab, MappedSlab)
    assert slab.size_bytes == 0
    assert slab.close()


def test_what_could_end_in_a_signal_is_refused(make: Make) -> None:
    """A mapping of a file that shrinks, or is shorter than it was said to be, kills who reads."""
    assert map_slab(welcome(1, 2), [make(1), make(-2)]) == "the pool's slab is not sealed."
    assert map_slab(welcome(1, 2), [make(1), make(1)]) == "the pool's slab is smaller than it says."
    assert map_slab(welcome(1, 2), [make(1)]) == "the pool sent no slab."
    assert map_slab(welcome(1), [make(1), make(1)]) == "the pool sent no slab."
    assert "cannot be mapped" in str(map_slab(welcome(2, addresses=1), [make(2)]))
    for addresses in (0, -1, 1 << 50):
        assert isinstance(map_slab(welcome(1, addresses=addresses), [make(1)]), str)
    reader, writer = os.pipe()
    assert map_slab(welcome(1), [reader]) == "the pool's slab is not sealed."
    os.close(reader)
    os.close(writer)


def test_a_later_welcome_of_the_same_slab_adds_what_is_new(make: Make) -> None:
    descriptors = [make(1), make(3)]
    slab = map_slab(welcome(1), descriptors[:1])
    assert isinstance(slab, MappedSlab)
    later = welcome(1, 3)
    later.given_back.append(0)
    again = [os.dup(each) for each in descriptors]  # as they come with another welcome
    assert slab.renew(later, again) == ""
    for each in again:
        os.close(each)
    assert slab.size_bytes == 4 * PAGE_BYTES
    assert slab.given_back == {0}
    assert slab.renew(later, descriptors) == "", "nothing is new"
    assert slab.size_bytes == 4 * PAGE_BYTES
    assert slab.close()


def test_another_slab_is_not_taken_for_the_same(make: Make) -> None:
    first, other = make(1), make(1)
    slab = map_slab(welcome(1), [first])
    assert isinstance(slab, MappedSlab)
    why = "the pool has another slab than before."
    assert slab.renew(welcome(1), [other]) == why
    assert slab.renew(welcome(1, 1), [other, first]) == why
    assert slab.renew(welcome(), []) == why, "its only segment is gone"
    assert slab.renew(welcome(1, 1), [first]) == why, "a descriptor is missing"
    assert "not sealed" in slab.renew(welcome(1, 1), [first, make(-1)])
    assert slab.size_bytes == PAGE_BYTES
    assert slab.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_its_descriptors_are_its_own_and_end_with_it(make: Make, is_closed: bool) -> None:
    given = [os.dup(make(1)), os.dup(make(3))]
    slab = map_slab(welcome(1, 3), given)
    assert isinstance(slab, MappedSlab)
    for descriptor in given:
        os.close(descriptor)
    mine = [each.descriptor for each in slab.segments]
    assert [os.fstat(each).st_size // PAGE_BYTES for each in mine] == [1, 3]
    if is_closed:
        view = slab.view(0, 1)
        assert not slab.close()
        assert all(map(os.fstat, mine)), "somebody still reads from it"
        assert view is not None
        view.release()
        assert slab.close()
        assert slab.close()
    del slab
    for descriptor in mine:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
