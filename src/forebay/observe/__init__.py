"""What others see of a pool over HTTP: its dashboard."""
