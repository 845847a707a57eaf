"""What benchmarks need inside vLLM: the counters of its worker."""
