"""What engines ask for, and what is read before they ask: after a start, or for dialogs."""
