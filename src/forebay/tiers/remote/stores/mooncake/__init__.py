"""Mooncake Store, which cannot list objects: the lists that a store needs are objects, too."""
