"""The pool's slab in a worker: mapped before the first request, and as one worker sees it."""
