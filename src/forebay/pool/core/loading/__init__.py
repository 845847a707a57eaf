"""From lookup to release: reading ahead, acquiring what is asked for, promising it."""
