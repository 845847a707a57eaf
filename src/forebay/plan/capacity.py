"""What a load needs, and what a machine holds: KV in all, contexts and users that fit.

Tokens are not rounded to blocks. An engine rounds each sequence up to whole blocks (vLLM: 16
tokens), so it may hold a little less.
"""

from dataclasses import dataclass
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.shape import RANKS_MAX, LayerGroup, LayerKind, Shape, most_tokens
from forebay.plan.number import real, whole

TOKENS_MAX: Final = 10**9  # of one sequence


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """The KV of one group of layers."""

    kind: LayerKind
    layers: int
    formula: str  # with the numbers filled in
    total_bytes: int


@dataclass(frozen=True, slots=True)
class KvNeed:
    """The KV of a batch over all ranks, with each number counted once."""

    model: str
    batch: int
    tokens: int
    bits: int
    tp: int
    token_bytes: int  # of one token in all layers
    growing_token_bytes: int  # of one more token once every sliding window is full
    total_bytes: int
    rank_bytes: int  # that each tensor-parallel rank holds, copies included
    classic_token_bytes: int  # as if every attention head had its own K and V
    classic_total_bytes: int
    classic_factor: float  # classic / real size of the batch
    groups: tuple[GroupNeed, ...]


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """GPUs that serve one model; each replica uses `tp` of them."""

    gpus: int
    gpu_memory_bytes: int
    weights_bytes: int  # of one replica
    pool_bytes: int  # the pool's DRAM and NVMe
    tp: int
    utilization: float = 0.9  # vLLM's gpu_memory_utilization
    reserve_bytes: int = 2 << 30  # per GPU: activations, graphs, communication buffers

    def __post_init__(self) -> None:
        whole("gpus", self.gpus, most=10**6)
        whole("gpu_memory", self.gpu_memory_bytes, most=1 << 60)
        whole("weights", self.weights_bytes, least=0, most=1 << 60)
        whole("pool", self.pool_bytes, least=0, most=1 << 60)
        whole("tp", self.tp, most=RANKS_MAX)
        real("utilization", self.utilization, most=1.0)
        whole("reserve", self.reserve_bytes, least=0, most=1 << 60)
        if self.gpus % self.tp:
            raise SettingsError(f"gpus {self.gpus} is not a multiple of tp {self.tp}.")

    @property
    def room_bytes(self) -> int:
        """Memory for the KV of one replica; 0 if the weights do not fit."""
        usable_bytes = round(self.gpu_memory_bytes * self.utilization) - self.reserve_bytes
        return max(0, self.tp * usable_bytes - self.weights_bytes)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits, for contexts of `tokens` tokens."""

    tokens: int
    replicas: int
    weights_bytes: int  # over all replicas
    room_bytes: int  # over all replicas
    context_bytes: int  # of one user on the GPUs, copies on ranks included
    pool_context_bytes: int  # of one user in the pool, each number once
    longest_context_tokens: int  # a running request must fit on the GPUs: a pool adds nothing
    users_running: int  # whose contexts are on the GPUs at the same time
    users_kept: int  # whose contexts need not be recomputed, with the pool


def kv_need(shape: Shape, batch: int, tokens: int, tp: int = 1) -> KvNeed:
    """The KV of `batch` sequences of `tokens` tokens."""
    whole("batch", batch, most=10**9)
    whole("tokens", tokens, most=TOKENS_MAX)
    rank = shape.rank(tp)
    total_bytes = batch * shape.sequence_bytes(tokens)
    classic_total_bytes = batch * tokens * shape.classic_token_bytes
    return KvNeed(
        model=shape.name,
        batch=batch,
        tokens=tokens,
        bits=shape.bits,
        tp=tp,
        token_bytes=shape.token_bytes,
        growing_token_bytes=shape.growing_token_bytes,
        total_bytes=total_bytes,
        rank_bytes=batch * rank.sequence_bytes(tokens),
        classic_token_bytes=shape.classic_token_bytes,
        classic_total_bytes=classic_total_bytes,
        classic_factor=classic_total_bytes / total_bytes,
        groups=tuple(
            GroupNeed(
                kind=group.kind,
                layers=group.layers,
                formula=_formula(shape, group, batch, tokens),
                total_bytes=batch * shape.group_bytes(group, tokens),
            )
            for group in shape.groups
        ),
    )


def capacity(
    shape: Shape, machine: GpuMachine, tokens: int, pooled: Shape | None = None
) -> Capacity:
    """The longest context, and how many contexts of `tokens` tokens, the machine holds.

    `pooled` is the shape of KV in the pool; None: as on the GPUs.
    """
    pooled = pooled or shape
    whole("tokens", tokens, most=TOKENS_MAX)
    rank = shape.rank(machine.tp)
    room_bytes = machine.room_bytes

    def held_bytes(length: int) -> int:
        return machine.tp * rank.sequence_bytes(length)

    replicas = machine.gpus // machine.tp
    users_running = replicas * (room_bytes // held_bytes(tokens))
    # If no user can run, none comes back to a kept context.
    users_parked = machine.pool_bytes // pooled.sequence_bytes(tokens) if users_running else 0
    return Capacity(
        tokens=tokens,
        replicas=replicas,
        weights_bytes=replicas * machine.weights_bytes,
        room_bytes=replicas * room_bytes,
        context_bytes=held_bytes(tokens),
        pool_context_bytes=pooled.sequence_bytes(tokens),
        longest_context_tokens=most_tokens(
            lambda length: held_bytes(length) <= room_bytes,
            shape.context_tokens_max or TOKENS_MAX,
        ),
        users_running=users_running,
        users_kept=users_running + users_parked,
    )


def _formula(shape: Shape, group: LayerGroup, batch: int, tokens: int) -> str:
    if group.kind is LayerKind.LINEAR:
        return f"B x L x state = {batch} x {group.layers} x {group.state_bytes}"
    kept = "S" if group.window_tokens is None else "min(S, W)"
    bits = group.bits or shape.bits
    product = f"{batch} x {group.kept_tokens(tokens)} x {group.layers}"
    if group.kind is LayerKind.LATENT:
        width = group.head_values
        return f"B x {kept} x L x (rank + rope) x Q/8 = {product} x {width} x {bits}/8"
    if group.kind is LayerKind.INDEX:
        return f"B x {kept} x L x D x Q/8 = {product} x {group.head_values} x {bits}/8"
    head = f"{group.heads} x {group.head_values // 2}"
    return f"2 x B x {kept} x L x H x D x Q/8 = 2 x {product} x {head} x {bits}/8"
