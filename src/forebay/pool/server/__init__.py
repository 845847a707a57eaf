"""The pool's sockets and timers: one thread, one selector. `server` drives a `Core`."""
