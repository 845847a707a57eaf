"""Region files: how they are filled, evicted, and found again at a start."""
