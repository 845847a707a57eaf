"""Which engine a request goes to, and when: no HTTP, no JSON."""
