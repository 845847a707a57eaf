"""Records that lie together on a medium and leave it together: a region's, or a pack's."""

from forebay.record.header import DEFAULT_TENANT


class Extent:
    """What a catalog knows about a region or a pack; its tier knows the rest."""

    __slots__ = ("begun_at", "name", "number", "size_bytes", "tenant")

    def __init__(self, number: int, name: str, size_bytes: int) -> None:
        self.number = number  # unique in this process; never given twice
        self.name = name  # of the file or object
        self.size_bytes = size_bytes
        self.tenant = DEFAULT_TENANT  # the tenant of all its records
        self.begun_at: float | None = None  # when it was begun, monotonic; None: by an earlier pool
