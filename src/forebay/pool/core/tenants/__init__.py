"""Tenants of a pool: who they are, what each may hold, and how one is forgotten."""
