"""What is measured of a store: its speed, and the requests it was sent."""
