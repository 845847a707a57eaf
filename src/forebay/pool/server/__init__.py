"""The pool's sockets and time: one thread, one selector. `server` drives a `Core`."""
