"""Mooncake Store, which has no listing: what a store must have beyond it is kept in objects."""
