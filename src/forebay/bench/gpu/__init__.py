"""The GPU's rows: one question each, all its variants in one run of one machine, JSON at once."""
