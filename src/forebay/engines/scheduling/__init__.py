"""The scheduler's side of the connector: what to ask for and what to offer, without waiting."""
