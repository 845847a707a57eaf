"""What to keep in DRAM, what to write to NVMe and when: pure logic without I/O."""
