"""Models as the planner sees them: how many bytes of KV a token takes, and in which layers."""
