"""The pool's slab in a worker: how it is seen there, and had before the first request."""
