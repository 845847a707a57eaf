"""What is seen of a store: how fast it is, and how many requests it is sent."""
