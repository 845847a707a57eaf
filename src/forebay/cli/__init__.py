"""The `forebay` command: one module a command, each with `add(commands)`."""
