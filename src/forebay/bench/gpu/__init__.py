"""The rows of docs/benchmarks.md: all variants of a row in one run of one machine, as JSON."""
