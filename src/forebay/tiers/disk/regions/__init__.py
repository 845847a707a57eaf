"""Region files: what one is, how they are filled and evicted, how they are found again."""
