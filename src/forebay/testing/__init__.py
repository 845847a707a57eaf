"""Faults at the `sys` seam and the tests that every tier inherits; shipped for others to use.

`faultdisk` and `clock` stand in for the world, `conformance` and `stateful` are what a tier must
pass, `samples` are records that anyone can check.
"""
