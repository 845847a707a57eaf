"""The gateway's seam to its HTTP library: nothing else of it imports aiohttp."""
