"""Digests of what an engine stores."""
