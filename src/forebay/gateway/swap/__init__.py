"""Several engines on one GPU, one of them awake: which, when, and how it gets there."""
