"""From lookup to release: requests, what is kept until they ask, and what they are promised."""
