"""The index: what each host publishes of its packs, and how others look records up in it."""
