"""From a lookup to the release: reading ahead, acquiring what is asked for, promising it."""
