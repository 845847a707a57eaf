"""Faults at the `sys` seam and the tests that every tier inherits; shipped for others to use.

`faultdisk` and `clock` replace the real disk and clock, `conformance` and `stateful` are the tests
that a tier must pass, `samples` are records whose content can be checked anywhere.
"""
