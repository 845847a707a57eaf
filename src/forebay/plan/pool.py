"""How large a pool: users x context x how long a context should live.

Little's law. While `users` are active and each stays for a session, users / session new contexts
come each second; a tier that keeps a context for a time T after its user left holds
users x (1 + T / session) of them. NVMe holds every context that is still kept, DRAM those that may
be asked for in the next minutes; a chunk may be in both.
"""

import math
from dataclasses import dataclass
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.capacity import TOKENS_MAX
from forebay.plan.model.shape import Shape
from forebay.plan.number import real, whole

DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Demand:
    """Who uses the service, and for how long their context is worth keeping."""

    users: int  # active at the same time
    context_tokens: int  # of one user at the end of a session
    live_hours: float = 24.0  # how long NVMe keeps a context after its user left
    session_minutes: float = 30.0  # how long a user stays
    dram_minutes: float = 10.0  # how long DRAM keeps a context after its user left
    headroom: float = 0.1  # room for regions being written and for peaks

    def __post_init__(self) -> None:
        whole("users", self.users, most=10**9)
        whole("context", self.context_tokens, most=TOKENS_MAX)
        real("live_hours", self.live_hours, most=1e6, zero=True)
        real("session_minutes", self.session_minutes, most=1e8)
        real("dram_minutes", self.dram_minutes, most=1e8, zero=True)
        real("headroom", self.headroom, most=10.0, zero=True)
        if self.dram_minutes > self.live_hours * 60:
            raise SettingsError(
                f"dram_minutes {self.dram_minutes:g} is longer than live_hours"
                f" {self.live_hours:g}; DRAM cannot outlive the pool."
            )


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The size of a pool."""

    context_bytes: int  # of one user
    new_contexts_per_day: float
    contexts_in_dram: int
    contexts_in_nvme: int
    dram_bytes: int
    nvme_bytes: int
    writes_per_day_bytes: int  # if every new token is written once: an upper bound


def pool_size(shape: Shape, demand: Demand) -> PoolSize:
    """The DRAM and NVMe that a demand needs."""
    context_bytes = shape.sequence_bytes(demand.context_tokens)
    session_s = demand.session_minutes * 60
    per_day = demand.users * DAY_S / session_s

    def contexts(kept_s: float) -> int:
        return math.ceil(demand.users * (1 + kept_s / session_s))

    def room_bytes(count: int) -> int:
        return math.ceil(count * context_bytes * (1 + demand.headroom))

    in_dram = contexts(demand.dram_minutes * 60)
    in_nvme = contexts(demand.live_hours * 3600)
    return PoolSize(
        context_bytes=context_bytes,
        new_contexts_per_day=per_day,
        contexts_in_dram=in_dram,
        contexts_in_nvme=in_nvme,
        dram_bytes=room_bytes(in_dram),
        nvme_bytes=room_bytes(in_nvme),
        writes_per_day_bytes=math.ceil(per_day * demand.context_tokens * shape.token_bytes),
    )
