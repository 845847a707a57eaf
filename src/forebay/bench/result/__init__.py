"""Results of load benchmarks: their format, what they say, and how they compare."""
