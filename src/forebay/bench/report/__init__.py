"""The report of a benchmark: for the terminal, and as one HTML file that needs nothing else."""
