"""What a promise means: views of the slab, once it is proved to be for the chunks meant."""

from forebay.identity.keys import proof_of
from forebay.pool.client.chain import Chain
from forebay.pool.client.link import Link
from forebay.pool.messages import Promise


def views_of(link: Link, chain: Chain, promise: Promise) -> list[memoryview] | None:
    """The payloads that are here, read-only; None if they are not this chain's in this slab."""
    first, count = promise.first, len(promise.offsets)
    if promise.generation != link.generation or len(promise.lengths) != count:
        return None
    if promise.proof != proof_of(chain.keys[first : first + count]):  # verify: proof
        return None
    views = []
    for offset, length in zip(promise.offsets, promise.lengths, strict=True):
        view = link.view(offset, length)
        if view is None:
            return None
        views.append(view.toreadonly())
    return views
