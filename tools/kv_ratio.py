"""How far the exponent code shrinks KV of real weights, and pages whose exponents are uniform.

Usage: kv_ratio.py [TEXT] [--model DIR] [--tokens 2048] [--block 16]. Computes a text's KV in
bfloat16 with transformers, on a CPU, page by page as vLLM lays it out, and encodes every page with
the reference; TEXT is README.md and --model the demo model unless it is said otherwise. Run it in
vLLM's environment. It ends with 1 where a page that fits does not come back equal.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

from forebay.engines.codec import exponents  # noqa: E402
from forebay.engines.start import demo_model  # noqa: E402
from forebay.record.exponents import COUNT_AT, encoded_bytes  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", type=Path, default=ROOT / "README.md")
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--block", type=int, default=16)
    wanted = parser.parse_args()
    pages = kv_pages(wanted.model or demo_model.prepare(), wanted)
    spread = np.random.default_rng(0).integers(0, 1 << 16, (64, pages.shape[1] // 2))
    is_equal = tell("real KV", pages) & tell("uniform", spread.astype(np.uint16).view(np.uint8))
    return 0 if is_equal else 1


def kv_pages(model: str, wanted: argparse.Namespace) -> Any:
    """A row a page: a block of one layer, K and V."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    text = wanted.text.read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt").input_ids[:, : wanted.tokens]
    ids = ids[:, : ids.shape[1] // wanted.block * wanted.block]
    with torch.no_grad():
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        layers = loaded(ids, use_cache=True).past_key_values.layers
    both = [torch.stack([layer.keys[0], layer.values[0]]) for layer in layers]
    every = torch.stack(both).view(torch.int16).numpy()  # layer, K or V, head, token, number
    count, kinds, heads, tokens, width = every.shape
    blocks = every.reshape(count, kinds, heads, tokens // wanted.block, wanted.block, width)
    in_order = np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 2, 5))
    return in_order.reshape(count * tokens // wanted.block, -1).view(np.uint8)


def tell(name: str, pages: Any) -> bool:
    """Print what becomes of these pages; False if one that fits is not equal afterwards."""
    page_bytes = pages.shape[1]
    encoded = exponents.encode(pages)
    fits = np.array([exponents.fit(row[None], page_bytes) for row in encoded])
    escapes = encoded[:, COUNT_AT : COUNT_AT + 4].copy().view("<u4").ravel()
    decoded = exponents.decode(encoded[fits], page_bytes) if fits.any() else pages[fits]
    is_equal = decoded is not None and bool((decoded == pages[fits]).all())
    stored = int(fits.sum()) * encoded_bytes(page_bytes) + int((~fits).sum()) * page_bytes
    print(
        f"{name:<9} {len(pages)} pages of {page_bytes} bytes: {pages.size / stored:.3f} x,"
        f" {escapes.mean() / (page_bytes // 2):.3%} escapes (most {escapes.max()} a page),"
        f" {int((~fits).sum())} stored raw, {'equal' if is_equal else 'NOT EQUAL'}"
    )
    return is_equal


if __name__ == "__main__":
    sys.exit(main())
