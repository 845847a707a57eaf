"""Records in one medium each, behind one contract; siblings that do not know each other."""
