"""What is worth reading ahead from a store: what it brings sooner than a GPU that has nothing else.

Pure arithmetic. A GPU that is busy may load what takes longer than computing it: that is for the
engine to say, which knows, when it asks (`forebay.engines.scheduling.load_or_recompute`).
"""

from forebay.tiers.contract import TierSpeed


def is_read_ahead(size_bytes: int, speed: TierSpeed, gpu_bytes_a_s: float) -> bool:
    """Whether so much of a store is worth reading before anybody asks for it.

    What is not known to be slower is: nothing else would tell how fast a store is.
    """
    if not (speed.bytes_a_s and gpu_bytes_a_s):
        return True
    return speed.first_s + size_bytes / speed.bytes_a_s <= size_bytes / gpu_bytes_a_s
