"""What the thread of a remote tier does: reads, writes, and keeps up with store and hosts."""
