"""The pool's core: chunks, slots, promises and writes, on one thread and without sockets."""

from forebay.pool.core.pool import Pool, PoolOptions

__all__ = ["Pool", "PoolOptions"]
