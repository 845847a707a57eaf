"""Faults at the `sys` seam and the tests that every tier inherits; shipped for others to use."""
