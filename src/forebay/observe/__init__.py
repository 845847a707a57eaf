"""What can be seen of a pool, and of the machine that it runs on."""
