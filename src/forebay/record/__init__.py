"""The bytes of records and regions: pure functions, no I/O. docs/format.md has the byte tables."""
