"""The pool's core: chunks, slots, promises and writes, decided on one thread without sockets."""

from forebay.pool.core.pool import Pool, PoolOptions

__all__ = ["Pool", "PoolOptions"]
