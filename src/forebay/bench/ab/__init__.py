"""Servers compared under the same load, without and with the pool; the demo is a small case."""
