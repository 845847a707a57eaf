"""The seam to the GPU: streams, events, registered memory, batches of copies. It decides nothing.

Tests use a simulated device here, whose streams really run late; production uses `cuda.CudaDriver`.
"""

from typing import Any, Protocol, TypeAlias

from forebay.engines.copies.pointers import Batch

Stream: TypeAlias = Any
Event: TypeAlias = Any


class Driver(Protocol):
    """One device. Calls return at once; what they order happens on the device."""

    def enter_thread(self) -> None:
        """To be called first on each of our threads."""
        ...

    def compute(self) -> Stream:
        """The stream on which the calling thread runs the model."""
        ...

    def stream(self, *, is_urgent: bool) -> Stream:
        """A new stream."""
        ...

    def record(self, stream: Stream) -> Event:
        """An event that comes after everything put on a stream so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Whatever is put on the stream from now on happens after the event."""
        ...

    def is_done(self, event: Event) -> bool:
        """Whether the device has reached an event."""
        ...

    def seconds(self, begin: Event, end: Event) -> float:
        """The time between two events that the device has reached."""
        ...

    def copy(self, stream: Stream, batch: Batch, *, inward: bool, by_engine: bool = False) -> None:
        """Copy pages into the KV cache (`inward`) or out of it; the batch may be dropped then.

        Pages of a batch that `is_encoded` are decoded on their way in, and encoded on their way
        out. `by_engine`: by copy engines and not by a kernel, which needs device memory for its
        pointers.
        """
        ...

    def pages_a_call(self, page_bytes: int, *, inward: bool, is_encoded: bool) -> int:
        """How many pages a batch should have at most, since calls of other threads wait for it."""
        ...

    def register(self, address: int, length: int) -> str:
        """Let the device reach host memory; in a few words why it cannot, or "". May be slow."""
        ...

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        ...
