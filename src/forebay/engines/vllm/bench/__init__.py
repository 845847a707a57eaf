"""What benchmarks need of vLLM and torch: counters of its worker, and the copies by themselves."""
