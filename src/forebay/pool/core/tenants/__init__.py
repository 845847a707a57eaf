"""Tenants of a pool: who asks, what each may hold, and how one is forgotten."""
