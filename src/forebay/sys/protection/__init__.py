"""Protection of secrets: where they come from, and which rights a process gives up."""
