"""Valkey and Redis as a store: a server, or a cluster of them, spoken to over plain sockets."""
