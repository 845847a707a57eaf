"""SGLang's HiCache on the pool, without a change to SGLang: a `dynamic` storage backend.

docs/sglang.md says how it is started, and what is shared.
"""
