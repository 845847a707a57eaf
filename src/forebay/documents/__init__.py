"""Documents of prompts, ordered so that those which many prompts share become prefixes."""
