"""Several engines on one GPU, of which one is awake: which one, when, and how."""
