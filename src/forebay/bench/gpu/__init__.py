"""The GPU's rows: one question each, all its sides in one run of one machine, JSON at once."""
