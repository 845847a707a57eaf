"""Small models with seeded weights, and prompts for them."""

import random
from pathlib import Path

PROCESSOR = Path("/proc/cpuinfo").read_text().split()
# On an ARM processor without it vLLM's kernels for bfloat16 end the process, and those for float16
# take hours.
HAS_BFLOAT16 = "asimd" not in PROCESSOR or "bf16" in PROCESSOR
VOCABULARY = 2048

Tokens = list[int]


def made_model(
    place: Path, seed: int, *, heads: int, kv_heads: int, layers: int, head_dim: int = 32
) -> Path:
    """A small model whose answers depend on its KV: seeded weights of ordinary spread."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=heads * head_dim,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=2048,
        initializer_range=0.08,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(place)
    return place


def dialogs(count: int, length: int, seed: int = 0) -> list[Tokens]:
    """First prompts of as many dialogs; those of two seeds have no prefix in common."""
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for _ in range(count)]


def next_turn(prompts: list[Tokens], answers: list[Tokens], seed: int) -> list[Tokens]:
    """Every dialog goes on with what was answered and something new."""
    more = dialogs(len(prompts), 70, seed)
    return [p + a + m for p, a, m in zip(prompts, answers, more, strict=True)]
