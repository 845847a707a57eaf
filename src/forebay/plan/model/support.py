"""Whether the connector would share a model's KV: by the same table as the connector itself.

A model's `config.json` says which kinds of attention it has. What else an engine is configured with
is known only when it starts.
"""

from typing import Final

from forebay.engines.vllm.kinds import KINDS, Support
from forebay.plan.model.shape import LayerKind, Shape

_ATTENTION: Final = {
    LayerKind.FULL: "FullAttentionSpec",
    LayerKind.SLIDING: "local attention alone",
    LayerKind.LATENT: "MLAAttentionSpec",
    LayerKind.LINEAR: "local attention alone",
}


def why_declined(shape: Shape) -> str:
    """Why the connector would decline an engine with this model; empty: it would not."""
    kinds = {_ATTENTION[group.kind] for group in shape.groups}
    kind = KINDS[kinds.pop() if len(kinds) == 1 else "several attentions"]
    return "" if kind.support is Support.SHARED else kind.why
