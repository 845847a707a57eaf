"""Forebay: a shared, verified KV-cache pool beneath the GPUs of LLM inference servers."""

__version__ = "0.2.0.dev0"
