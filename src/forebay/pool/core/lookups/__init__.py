"""Lookups: how much of a chain is known, answered at once or when it has been stored."""
