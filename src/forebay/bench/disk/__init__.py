"""`forebay bench pool`: a drive, raw against Forebay's verified tier."""
