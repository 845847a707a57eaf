"""Small models with seeded weights, and prompts for them."""

import json
import random
from pathlib import Path

PROCESSOR = Path("/proc/cpuinfo").read_text().split()
# On an ARM processor without it vLLM's kernels for bfloat16 end the process, and those for float16
# take hours.
HAS_BFLOAT16 = "asimd" not in PROCESSOR or "bf16" in PROCESSOR
VOCABULARY = 2048
IMAGE = 2047  # the token in whose place an image comes

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


def made_latent_model(place: Path, *, heads: int = 4, head_dim: int = 32) -> Path:
    """A small model with multi-head latent attention, as DeepSeek-V2 has it; seeded as above."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(4)
    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=head_dim,
        v_head_dim=head_dim,
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


def made_image_model(place: Path) -> Path:
    """A small model that sees images, as Idefics3 has it: 19 tokens for one of 56 by 56 pixels."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(5)
    tower = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "initializer_range": 0.5,
    }
    text = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "initializer_range": 0.08,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": 0,
    }
    config = Idefics3Config(
        image_token_id=IMAGE, vision_config=tower, text_config=text, scale_factor=1
    )
    Idefics3ForConditionalGeneration(config).save_pretrained(place)
    special = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<image>")
    words = [f"w{number}" for number in range(VOCABULARY - len(special))] + list(special)
    known = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="w0"))
    known.add_special_tokens(list(special))
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 56}, max_image_size={"longest_edge": 56}, do_image_splitting=False
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=known)
    Idefics3Processor(images, tokenizer, image_seq_len=16).save_pretrained(place)
    return place


def made_drafter(place: Path, seed: int) -> Path:
    """A drafter for the first model, as EAGLE has it: one layer, fed with the model's states."""
    import torch
    from safetensors.torch import load_file, save_file

    made_model(place, seed, heads=4, kv_heads=2, layers=1)
    weights = place / "model.safetensors"
    kept = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(weights).items()
        if name not in {"model.norm.weight", "model.layers.0.input_layernorm.weight"}
    }
    hidden = kept["embed_tokens.weight"].shape[1]
    kept.pop("lm_head.weight", None)  # the model's own is used
    kept["fc.weight"] = torch.randn(hidden, 2 * hidden) * 0.08
    save_file(kept, weights)
    return place


def made_model_with_mtp(place: Path) -> Path:
    """A small model with a layer that predicts a token more, as MiMo has it."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(8)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3}
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        **sizes,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.08,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(place)
    weights, described = place / "model.safetensors", place / "config.json"
    tensors = load_file(weights)
    first, added = "model.layers.0.", "model.mtp_layers.0."
    layer = {name: each for name, each in tensors.items() if name.startswith(first)}
    for name, each in layer.items():
        tensors[name.replace(first, added)] = torch.randn_like(each) * 0.08 + 1.0 * (each.dim() < 2)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{added}{name}.weight"] = torch.ones(128)
    tensors[f"{added}input_proj.weight"] = torch.randn(128, 256) * 0.08
    save_file(tensors, weights)
    told = json.loads(described.read_text())
    told |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    described.write_text(json.dumps(told))
    return place


def made_adapter(place: Path, seed: int, model: Path) -> Path:
    """A LoRA adapter for a model: of rank 8, in the projections to K and V and beside them."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    width = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name, heads in width.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(8, hidden) * 0.3
            tensors[f"{at}.lora_B.weight"] = torch.randn(heads * config["head_dim"], 8) * 0.3
    save_file(tensors, place / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": list(width)}
    (place / "adapter_config.json").write_text(json.dumps(adapter))
    return place


def dialogs(count: int, length: int, seed: int = 0) -> list[Tokens]:
    """First prompts of as many dialogs; those of two seeds have no prefix in common."""
    draw = random.Random(seed)
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for _ in range(count)]


def next_turn(prompts: list[Tokens], answers: list[Tokens], seed: int) -> list[Tokens]:
    """Every dialog goes on with what was answered and something new."""
    more = dialogs(len(prompts), 70, seed)
    return [p + a + m for p, a, m in zip(prompts, answers, more, strict=True)]
