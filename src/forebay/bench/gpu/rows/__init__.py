"""What each row measures, in the words of docs/benchmarks.md."""
