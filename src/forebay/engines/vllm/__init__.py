"""vLLM 0.26 to 0.32: its KV cache on the pool, without changes to vLLM.

Name it in vLLM's own configuration:

    --kv-transfer-config '{"kv_connector": "ForebayConnector", "kv_role": "kv_both"}'
"""
