"""Watching a pool over HTTP: metrics for Prometheus, health, readiness and statistics as JSON."""
