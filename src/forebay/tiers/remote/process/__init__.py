"""The child process of a remote tier: the only one that calls a store."""
