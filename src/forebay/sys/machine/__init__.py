"""What the machine, the container and the process allow, read from /proc and /sys."""
