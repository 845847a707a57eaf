"""What may be used in place of what: keys and namespaces, as pure functions."""
