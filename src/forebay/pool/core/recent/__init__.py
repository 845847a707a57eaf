"""What the pool remembers of requests, of what it lost, and of its engines: to say why."""
