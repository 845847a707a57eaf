"""What a region file is and holds, found at a start.

The table of a sealed region is believed (its records are verified when they are loaded). A region
without one was open when its process died: it is walked and every record in it is verified whole,
because the last of them may be torn.
"""

from typing import Final

from forebay.record import region as layout
from forebay.record.header import Damage
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.disk.regions.reader import RegionContents, RegionReader

_SECTOR_BYTES: Final = 512  # what a drive writes whole or not at all


def recover(reader: RegionReader, named: int) -> RegionContents | Damage | None:
    """Read one region; `named` is the generation in its file's name.

    A region whose header is damaged is still walked, by the generation in its name. None: its first
    header was never written whole, or too little is left of it. Damage is returned only for a file
    that holds nothing of ours: it may be another's (NOT_A_RECORD) or a later Forebay's
    (NEWER_VERSION). OSError: its header cannot be read, and nothing else tells whose it is.
    """
    unreadable: OSError | None = None
    try:
        head = reader.first_page()
    except OSError as error:
        head, unreadable = memoryview(b""), error
    header = layout.unpack_header(head)
    if header is Damage.NEWER_VERSION:
        return header
    generation = named if isinstance(header, Damage) else header.generation
    if reader.size_bytes >= layout.FIRST_RECORD + PAGE_BYTES:  # room for a footer at least
        found = reader.contents(generation)
        if found.packed or found.is_sealed or not isinstance(header, Damage):
            return found
    if unreadable is not None:
        raise unreadable
    return _judge(header, head)


def _judge(header: layout.RegionHeader | Damage, head: memoryview) -> Damage | None:
    """What a file is that holds no record: one of ours that was never begun, or another's."""
    # Created, perhaps preallocated, but the sector with its magic never reached the medium.
    if not any(head[:_SECTOR_BYTES]):
        return None
    # Our magic without our hash is a header torn while it was written, by creation or eviction.
    if header is Damage.HEADER_HASH or not isinstance(header, Damage):
        return None
    return header
