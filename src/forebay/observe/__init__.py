"""The pool's HTTP port: metrics for Prometheus, health, readiness and statistics as JSON."""
