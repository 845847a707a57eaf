"""Copies between the engine's KV cache and the pool's slab, behind one contract."""
