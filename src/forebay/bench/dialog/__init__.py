"""Dialogs of several turns against an OpenAI-compatible server: made, held and measured."""
