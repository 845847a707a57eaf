"""What keeps secrets: where they come from, and what a process gives up."""
