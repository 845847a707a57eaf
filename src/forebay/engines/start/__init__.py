"""Starting an engine with the pool beneath it; nothing here imports an engine."""
