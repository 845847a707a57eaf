"""Measurements that print ratios from one run."""
