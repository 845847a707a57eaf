"""How recorded prompts begin: what in them keeps one from being the prefix of another."""
