"""Lookups: how much of a chain is known, answered at once or after it has been stored."""
