"""What others can observe of an engine and its pool: KV events for routers, spans for traces."""
