"""The pool: one process per host that owns DRAM, NVMe, the index and the judgement."""
