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


WINDOWED = {
    # Two windows, then full attention; the window is longer than a chunk.
    "gemma3": {
        "sliding_window": 300,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 32,
    },
    # A window shorter than a chunk, attention sinks, experts.
    "gpt_oss": {
        "sliding_window": 64,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "initial_context_length": 2048,
    },
    # Heads of two sizes, and so blocks of two sizes.
    "gemma4": {
        "sliding_window": 96,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "global_head_dim": 64,
        "vocab_size_per_layer_input": 0,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
    # Attention within chunks of so many tokens; every fourth layer is full.
    "llama4": {
        "attention_chunk_size": 160,
        "num_hidden_layers": 4,
        "intermediate_size": 128,
        "intermediate_size_mlp": 128,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        "no_rope_layers": [1, 1, 1, 0],
    },
}


def made_recurrent_model(place: Path) -> Path:
    """A small model that keeps states beside full attention, as Qwen3-Next has it; seeded as above.

    vLLM's kernels for it need heads of 128 and bfloat16.
    """
    import torch
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    torch.manual_seed(6)
    config = Qwen3NextConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        full_attention_interval=2,
        layer_types=["linear_attention", "full_attention"] * 2,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        mlp_only_layers=[],
        max_position_embeddings=2048,
        initializer_range=0.08,
        eos_token_id=None,
        bos_token_id=None,
        dtype="bfloat16",
    )
    Qwen3NextForCausalLM(config).to(torch.bfloat16).save_pretrained(place)
    return place


def made_windowed_model(place: Path, kind: str) -> Path:
    """A small model with local attention beside full attention; seeded as above."""
    import torch
    import transformers

    names = {"gemma3": "Gemma3", "gpt_oss": "GptOss", "gemma4": "Gemma4", "llama4": "Llama4"}
    name = names[kind]
    config_class = getattr(transformers, f"{name}TextConfig", None)
    config = (config_class or getattr(transformers, f"{name}Config"))(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 2048,
            "initializer_range": 0.08,
            "eos_token_id": None,
            "bos_token_id": None,
            "tie_word_embeddings": False,
            **WINDOWED[kind],
        }
    )
    torch.manual_seed(5)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(place)
    return place


def dialogs(count: int, length: int, seed: int = 0) -> list[Tokens]:
    """First prompts of as many dialogs; those of two seeds have no prefix in common."""
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for _ in range(count)]


def next_turn(prompts: list[Tokens], answers: list[Tokens], seed: int) -> list[Tokens]:
    """Every dialog goes on with what was answered and something new."""
    more = dialogs(len(prompts), 70, seed)
    return [p + a + m for p, a, m in zip(prompts, answers, more, strict=True)]
