"""The scheduler's side of the connector: what to ask for, what to offer, decided without waiting."""
