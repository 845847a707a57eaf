"""Metrics: typed counters, gauges and histograms, and the one catalogue of what a pool measures."""
