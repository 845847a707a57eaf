"""From reserve to the lower tiers: slots for engines, commits, and write-behind."""
