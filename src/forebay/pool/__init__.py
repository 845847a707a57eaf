"""The pool: one process per host that owns DRAM and NVMe; engines join it over a Unix socket."""
