"""Run as child processes by measurements: what needs torch or vLLM in hand."""
