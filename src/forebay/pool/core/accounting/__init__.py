"""What a pool's core holds and does, as numbers for operators, metrics and tests."""
