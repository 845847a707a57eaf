"""Figures of a pool that runs: a real process, measured over its socket."""
