"""What may be interchanged with what: keys and namespaces, as pure functions."""
