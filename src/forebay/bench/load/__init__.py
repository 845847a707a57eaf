"""A load on an OpenAI-compatible server: sessions, concurrent clients, and measured answers."""
