"""Benchmarks: of a drive, of a pool, of servers under load, and of one server against another."""
