"""A load on an OpenAI-compatible server: what is asked, by whom at once, and what it takes."""
