"""Whether the connector would share a model's KV: by the same table as the connector itself.

A model's `config.json` tells which kinds of attention it has. An engine's other configuration is
known only when it starts; so what the table declines for such attention is listed as well.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from forebay.engines.vllm.kinds import KINDS, Kind, Support
from forebay.plan.model.shape import LayerKind, Shape

_FULL: Final = {LayerKind.FULL, LayerKind.LATENT}
# For models with full attention, by the kinds of their other layers.
_BESIDE: Final = {
    frozenset({LayerKind.SLIDING}): "SlidingWindowSpec",
    frozenset({LayerKind.CHUNKED}): "ChunkedLocalAttentionSpec",
    frozenset({LayerKind.LINEAR}): "states",
}
_LOCAL: Final = ("drafters beside local attention",)
_DECLINED_WITH: Final[Mapping[str, tuple[str, ...]]] = {
    "SlidingWindowSpec": _LOCAL,
    "ChunkedLocalAttentionSpec": _LOCAL,
    "several attentions": _LOCAL,
    "states": ("MambaSpec", "zeroed states", "stages of states", "speculation beside states"),
}


class Outlook(NamedTuple):
    """The table's row for a model."""

    kind: Kind
    declined_with: tuple[Kind, ...] = ()  # configurations with which such an engine is declined

    @property
    def why_declined(self) -> str:
        """Why such a model is declined; empty if it is shared."""
        return "" if self.kind.support is Support.SHARED else self.kind.why

    def lines(self) -> list[str]:
        """The same as sentences for people."""
        if self.why_declined:
            says = "Forebay declines this model on vLLM, which then serves without it"
            return [f"{says}: {self.why_declined}."]
        found = [f"Forebay shares it on vLLM: {self.kind.what}; {self._where()}."]
        if self.declined_with:
            reasons = "; ".join(kind.why for kind in self.declined_with)
            found.append(f"It declines such an engine in some configurations: {reasons}.")
        return found

    def facts(self) -> dict[str, Any]:
        """The same for programs; `declined` is empty if it is shared."""
        return {
            "declined": self.why_declined,
            "compatibility": {
                "kind": self.kind.what,
                "run_on": [f"vLLM {release}, {device}" for release, device in self.kind.ran],
                "declined_if": [kind.why for kind in self.declined_with],
            },
        }

    def _where(self) -> str:
        """On which devices and with which releases it was tested or measured."""
        releases: dict[str, list[str]] = {}
        for release, device in self.kind.ran:
            releases.setdefault(device, []).append(release)
        places = [
            f"{device} (vLLM {each[0]}{f' to {each[-1]}' if len(each) > 1 else ''})"
            for device, each in releases.items()
        ]
        return f"run on {' and '.join(places)}" if places else "read in vLLM's source, not run"


def outlook(shape: Shape) -> Outlook:
    """The row of the table for this model's attention."""
    kinds = {group.kind for group in shape.groups}
    beside = frozenset(kinds - _FULL - {LayerKind.INDEX})
    if not kinds & _FULL:
        name = "local attention alone"
    elif beside:
        name = _BESIDE.get(beside, "several attentions")
    elif LayerKind.INDEX in kinds:
        name = "unequal layers"
    else:
        name = "MLAAttentionSpec" if LayerKind.LATENT in kinds else "FullAttentionSpec"
    return Outlook(KINDS[name], tuple(KINDS[each] for each in _DECLINED_WITH.get(name, ())))


def why_declined(shape: Shape) -> str:
    """Why the connector would decline an engine with this model; empty if it would not."""
    return outlook(shape).why_declined
