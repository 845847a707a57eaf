"""What a remote tier's thread does: reads, writes, and keeping up with store and hosts."""
