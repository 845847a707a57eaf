"""Commands that look at this host: its directories, its limits, what is in the way."""
