"""Commands about tenants: one is forgotten, a salt is hashed."""
