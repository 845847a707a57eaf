"""What engines tell their pool of themselves and of each request."""
