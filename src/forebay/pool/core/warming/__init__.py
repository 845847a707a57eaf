"""What engines ask for, and what is read before they do: for a warm start, or for dialogs."""
