"""Changing the tenants of a running pool, and forgetting one.

Forgetting, step by step:

1. Every tier writes down, durably, that the tenant's id is not served any more. A pool that dies
   behind this step finishes the rest when it starts again; one that dies before it forgot nothing.
2. The name gets its next id. Nothing can be asked for under the old one; what waits is refused.
3. What DRAM has under the old id is dropped, as soon as nobody uses it.
4. The tiers delete their records, and free slots of DRAM are wiped.

It is answered when all of this is done, or says what is left.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from forebay.errors import SettingsError
from forebay.metrics.labels import DRAM
from forebay.pool.core.admin import AdminOperations
from forebay.pool.core.chunks import Chunk
from forebay.pool.core.loading.loads import Loads
from forebay.pool.core.parts import CoreParts
from forebay.pool.core.tenants.registry import why_unfit
from forebay.pool.messages import AdminReply, Forget, SetTenants, setting_of
from forebay.pool.session import Session
from forebay.quantity import format_size
from forebay.tenants import parse_tenants
from forebay.tiers.contract import Forgotten
from forebay.tiers.dram.wiping import wipe_free

_log: Final = logging.getLogger(__name__)
RELEASE_S: Final = 60.0  # how long to wait for chunks that engines are copying
_MARGIN_S: Final = 10.0  # more than the longest time the pool's thread is busy


@dataclass(slots=True, eq=False)
class _Forgetting:
    """A tenant that is being forgotten."""

    name: str
    tenant: bytes  # the id to forget
    scrub: bool
    deadline: float = 0.0  # monotonic
    chunks: int = 0  # that have left DRAM
    size_bytes: int = 0  # bytes of these
    kept: int = 0  # chunks that engines still use
    drained: threading.Event = field(default_factory=threading.Event)


class Tenancy:
    """Changes to the tenants of a pool. Owned by the pool's thread."""

    def __init__(self, parts: CoreParts, loads: Loads, operations: AdminOperations) -> None:
        self._dram, self._stack, self._tenants = parts.dram, parts.stack, parts.tenants
        self._clock, self._complete = parts.clock, parts.complete
        self._loads, self._operations = loads, operations
        self._forgetting: list[_Forgetting] = []
        self._apply()

    @property
    def is_waiting(self) -> bool:
        """Whether an operation goes on with the next tick."""
        return bool(self._forgetting)

    def replace(self, session: Session, message: SetTenants) -> None:
        """Use these tenants from now on."""
        try:
            wanted = parse_tenants([setting_of(row) for row in message.tenants])
            unfit = why_unfit(wanted, self._caps())
            if unfit is None:
                self._tenants.replace(wanted)
        except SettingsError as error:
            unfit = str(error)
        if unfit is not None:
            session.send(AdminReply(ok=False, sentence=unfit))
            return
        self._apply()
        sentence = f"the pool has {len(self._tenants)} tenants, the default one included."
        _log.info("%s", sentence)
        session.send(AdminReply(ok=True, sentence=sentence))

    def forget(self, session: Session, message: Forget) -> None:
        """Forget a tenant; answered when nothing of it is left."""
        name = message.tenant
        tenant = self._tenants.id_of(name)
        is_known = self._tenants.named(name) or (tenant is not None and self._is_held(tenant))
        if tenant is None or not is_known:  # verify: a tenant that there is
            sentence = f"the pool knows no tenant '{name[:64]}', and holds nothing of one."
            session.send(AdminReply(ok=False, sentence=sentence))
            return
        if not self._tenants.can_renew(name):  # verify: another id
            sentence = f"tenant {name} was forgotten too often; rename it."
            session.send(AdminReply(ok=False, sentence=sentence))
            return
        _log.info("forgetting tenant %s, as process %s asks", name, session.process or "?")
        forgetting = _Forgetting(name, tenant, message.scrub)
        self._operations.in_background(session, partial(self._forget, forgetting))

    def learn_forgotten(self, tenants: frozenset[bytes]) -> None:
        """A store that was away tells which ids this pool has forgotten: forget them here, too."""
        learned = [
            _Forgetting(self._tenants.name_of(tenant), tenant, scrub=False)
            for tenant in filter(self._tenants.is_current, tenants)
        ]
        for each in learned:
            _log.info("tenant %s was forgotten, says a store that was away", each.name)
        self._begin(*learned)  # all at once, as there may be thousands

    def tick(self, now: float) -> None:
        """Drop what is to be forgotten and no longer in use, and unused policies."""
        found_of: dict[bytes, list[Chunk]] = {each.tenant: [] for each in self._forgetting}
        for chunk in self._dram.chunks if found_of else ():
            if chunk.name.tenant in found_of:
                found_of[chunk.name.tenant].append(chunk)
        for forgetting in list(self._forgetting):
            found = found_of[forgetting.tenant]
            forgetting.kept = self._dram.condemn(found)
            gone = [chunk for chunk in found if not self._dram.is_condemned(chunk)]
            found_of[forgetting.tenant] = list(filter(self._dram.is_condemned, found))
            forgetting.chunks += len(gone)
            forgetting.size_bytes += sum(chunk.length for chunk in gone)
            if not forgetting.kept or now >= forgetting.deadline:
                self._forgetting.remove(forgetting)
                forgetting.drained.set()
        self._dram.policies.forget_unless(self._is_used)

    def _is_used(self, tenant: bytes) -> bool:
        is_held = bool(self._dram.quotas.used_bytes(tenant))
        return is_held or self._tenants.with_id(tenant) is not None

    def _caps(self) -> Mapping[str, int]:
        return {DRAM: self._dram.slab.cap_bytes, **self._stack.quota_caps()}

    def _apply(self) -> None:
        self._dram.quotas.replace(self._tenants.quotas(DRAM))
        self._stack.set_quotas(self._tenants.quotas)

    def _is_held(self, tenant: bytes) -> bool:
        held = [tenants for _, tenants in self._stack.held_by_tenants()]
        return bool(self._dram.quotas.used_bytes(tenant)) or any(tenant in each for each in held)

    def _forget(self, forgetting: _Forgetting) -> AdminReply:
        """Runs on a thread of its own, since it waits for media."""
        failure = self._stack.remember_forgotten(forgetting.tenant)
        if failure:  # verify: remembered before anything is deleted
            sentence = f"tenant {forgetting.name} is not forgotten: {failure}."
            return AdminReply(ok=False, sentence=sentence)
        self._complete(partial(self._begin, forgetting))
        is_drained = forgetting.drained.wait(RELEASE_S + _MARGIN_S)
        found = self._stack.forget(forgetting.tenant, scrub=forgetting.scrub)
        wipe_free(self._dram.slab, self._operations.on_pool_thread, self._dram.used_bytes)
        return _reply(forgetting, found, is_drained=is_drained)

    def _begin(self, *begun: _Forgetting) -> None:
        """Give the names new ids, so that nothing can be asked for; on the pool's thread."""
        for forgetting in begun:
            self._tenants.renew(forgetting.name, forgetting.tenant)  # verify: a new id
        self._apply()
        for forgetting in begun:
            self._loads.refuse_all_of(forgetting.tenant)  # verify: nothing more is promised
            forgetting.deadline = self._clock.monotonic() + RELEASE_S
            self._forgetting.append(forgetting)
        self.tick(self._clock.monotonic())


def _reply(
    forgetting: _Forgetting, found: list[tuple[str, Forgotten]], *, is_drained: bool
) -> AdminReply:
    removed = [f"{forgetting.chunks} chunks ({format_size(forgetting.size_bytes)}) from DRAM"]
    removed += [
        f"{each.records} records ({format_size(each.size_bytes)}) from {tier}"
        for tier, each in found
    ]
    left = [f"{tier} keeps records: {each.failure}" for tier, each in found if each.failure]
    if forgetting.kept or not is_drained:
        left.append(f"{forgetting.kept} chunks in DRAM go when engines release them")
    sentence = f"removed {', '.join(removed)}"
    if not left:
        return AdminReply(ok=True, sentence=f"forgot tenant {forgetting.name}: {sentence}.")
    can = "nothing of it can be loaded any more, but"
    return AdminReply(
        ok=False,
        sentence=f"tenant {forgetting.name} is not all gone: {sentence}; {can} {'; '.join(left)}.",
    )
