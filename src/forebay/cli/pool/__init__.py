"""Commands of a running pool: to run it, to look at it, to change it."""
