"""Traces and simulation: the pool's own policy code, run on recorded requests."""
