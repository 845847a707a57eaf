"""Orders the documents of prompts, so that documents that many prompts share become prefixes."""
