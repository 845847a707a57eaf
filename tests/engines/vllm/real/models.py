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


def made_latent_model(place: Path) -> Path:
    """A small model with multi-head latent attention, as DeepSeek-V2 has it; seeded as above."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(4)
    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        first_k_dense_replace=2,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        max_position_embeddings=2048,
        initializer_range=0.08,
        eos_token_id=None,
        bos_token_id=None,
    )
    DeepseekV2ForCausalLM(config).save_pretrained(place)
    return place


def dialogs(count: int, length: int, seed: int = 0) -> list[Tokens]:
    """First prompts of as many dialogs; those of two seeds have no prefix in common."""
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for _ in range(count)]


def next_turn(prompts: list[Tokens], answers: list[Tokens], seed: int) -> list[Tokens]:
    """Every dialog goes on with what was answered and something new."""
    more = dialogs(len(prompts), 70, seed)
    return [p + a + m for p, a, m in zip(prompts, answers, more, strict=True)]
