"""What 0.1.0 stored for full attention on one GPU is still found: namespace, keys, record bytes.

The values were made by the code of 0.1.0. A model that has nothing else than full attention is
named as it was before there were groups, shards and drafters; whoever has those has other names.
"""

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.vllm.test_config import caches, full

from forebay.identity.groups import rule_of
from forebay.identity.keys import ChainRoot, KeyChain
from forebay.record.header import HEADER_BYTES, ROOT, RecordHeader, RecordName, pack, payload_hash

pytestmark = pytest.mark.vllm
NAMESPACE = "3c47457110c6689852ce23b54f55fdc5f1e0f0b7ebaa83616c996a470c68549f"
KEYS = [
    "fc2220e92918786726ab283b278ef2877f13a30120a282ab6452320ae5f2ff0a",
    "7fbd0ff6b59ba0da6f52b032e70842510590b571c4de89b7a3b6e7ec24295b28",
]
# SHA-256 of the headers of both records.
HEADERS = "da9df6ef65ab439664a4976ea13a2abd92c80877ab6c800e53b40242cd0ffc07"


@pytest.fixture
def config() -> Any:
    """What an engine's name is made of, as vLLM calls it, whatever version of it is installed."""
    model = {"model_type": "llama", "hidden_size": 64, "_name_or_path": "moved since"}
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(to_dict=lambda: model),
            dtype="torch.float32",
            quantization=None,
            max_model_len=2048,
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, world_size=1, rank=0
        ),
        speculative_config=None,
    )


def windowed() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return SlidingWindowSpec(
        block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32, sliding_window=64
    )


def test_names_of_a_single_group_are_those_of_the_first_release(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.engines.vllm import identity

    monkeypatch.setattr(identity, "vllm_version", "0.32.0")
    monkeypatch.setattr(identity, "layout_of", lambda *_: "LBHNC")

    def name_of(*specs: Any) -> bytes:
        cache = caches(*specs)
        space = identity.Namespace(config, cache, identity.geometry(config, cache, 64))
        space.know_weights("0" * 64)
        assert space.name is not None
        return space.name

    namespace = name_of(full())
    keys = KeyChain(ChainRoot(namespace, 64)).extend(list(range(128)))
    headers = b""
    for key, parent in zip(keys, (ROOT, keys[0]), strict=True):
        name = RecordName(namespace, 0, key, rule_of(0).parent_of(parent))
        page = bytearray(HEADER_BYTES)
        pack(RecordHeader(name, 1000, payload_hash(bytes(1000))), memoryview(page))
        headers += page
    found = (namespace.hex(), [key.hex() for key in keys], hashlib.sha256(headers).hexdigest())
    assert found == (NAMESPACE, KEYS, HEADERS)
    assert name_of(full(), windowed()) != namespace, "one with a window beside it is another model"
