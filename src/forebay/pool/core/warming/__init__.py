"""A warm start: hosts publish what they use most, and one that starts may fetch it ahead."""
