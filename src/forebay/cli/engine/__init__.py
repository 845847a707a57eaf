"""Commands that start an engine."""
