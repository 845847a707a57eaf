"""Digests of what an engine stores: computed in a separate process or on a thread."""
