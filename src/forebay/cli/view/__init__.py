"""A running pool for people: figures from its snapshots, as text and as a live screen."""
