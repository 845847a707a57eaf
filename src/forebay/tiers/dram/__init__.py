"""The DRAM tier: a slab of shared memory whose slots hold one chunk each."""
