"""The scheduler's side: what to ask the pool for and what to offer it, without waiting."""
