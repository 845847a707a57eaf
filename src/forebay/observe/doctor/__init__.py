"""`forebay doctor`: what on this machine, or in these settings, is in the way."""
