"""One rank of an SGLang engine: judged, joined to a pool, identified, then serving its pages.

Promised: `begin` raises only if the engine is to end (`strict`, `no_pool=fail`), with one sentence;
otherwise an obstacle means that nothing is shared, and the log says why, once. Nothing is shared
before the weights are identified, nor after they were changed in memory. No other call raises,
except for bugs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from forebay.engines.sglang import identity, options
from forebay.engines.sglang.identity import EngineFacts
from forebay.engines.sglang.pages import PageShape
from forebay.engines.sglang.store import PageStore
from forebay.engines.sharing import (
    DISABLED,
    NAMESPACE_DIGITS,
    EngineNamespace,
    Obstacle,
    SharingState,
    find_pool,
)
from forebay.engines.start.gpus import near_gpus
from forebay.engines.weights import WeightsHash
from forebay.errors import StartupError
from forebay.record.header import KEY_BYTES
from forebay.settings import Settings
from forebay.sys.clock import Clock

_CHANGED: Final = Obstacle(
    SharingState.DECLINED,
    "its weights were changed in memory; start it again with weights in files, or set keep_on_reset"
    " if they are the same",
    "weights changed",
)
_log: Final = logging.getLogger("forebay")


def _near_gpus(settings: Settings, arguments: Mapping[str, object]) -> Settings:
    """The settings with the GPUs of all ranks of this host in `numa`."""
    ranks, first = (arguments.get(name) for name in ("tp_size", "base_gpu_id"))
    count = ranks if isinstance(ranks, int) else 1
    return near_gpus(settings, count, first if isinstance(first, int) else 0)


class EngineRank:
    """What SGLang's threads call after `begin`."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.obstacle: Obstacle | None = None
        self.store: PageStore | None = None
        self._settings, self._clock = settings, clock
        self._shape = PageShape(0, ())
        self._space: EngineNamespace | None = None
        self._weights: WeightsHash | None = None
        self._have_changed: Callable[[], bool] = lambda: False
        self._model = ""

    def begin(
        self,
        facts: EngineFacts,
        shape: PageShape,
        memory: Mapping[str, str],
        have_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Judge the engine and join a pool; `have_changed` tells if weights changed in memory."""
        self._shape, self._have_changed = shape, have_changed
        self._model = str(facts.arguments.get("model_path"))
        for name in options.without_effect(self._settings):
            _log.warning("%s does nothing here: SGLang decides it by its pages and settings.", name)
        obstacle = identity.declined(facts)
        weights_id = self._settings.weights_id
        directory = "" if weights_id else identity.weights_directory(facts)
        if obstacle is None and isinstance(directory, Obstacle):
            obstacle = directory
        if obstacle is not None:
            self.disable(obstacle)
            return
        path = find_pool(_near_gpus(self._settings, facts.arguments))
        self._space = EngineNamespace(identity.fields_of(facts, shape, memory))
        if weights_id:
            self._space.name_weights(weights_id)
            self._say()
        else:
            self._weights = WeightsHash(str(directory))
        self.store = PageStore(path, self._settings, self._namespace, self._clock)

    def disable(self, obstacle: Obstacle) -> None:
        """Serve as without Forebay; StartupError where strict."""
        self.close()
        self.obstacle = obstacle
        if self._settings.strict:
            raise StartupError(f"Forebay is strict and cannot share: {obstacle.sentence}.")
        _log.warning(DISABLED, obstacle.sentence)

    def exists(self, keys: Sequence[str], prefix: Sequence[str] | None) -> int:
        """How many of these pages, counted from the first, are in the pool."""
        names, before = _names(keys), _names(prefix or ())
        if self.store is None or names is None or before is None:
            return 0
        return self.store.exists(names, before)

    def load(
        self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]
    ) -> list[bool]:
        """Load these pages into SGLang's buffers; True for each page, from the first, that came."""
        names, buffers = _names(keys), self._shape.buffers(addresses, sizes, len(keys))
        done = 0
        if self.store is not None and names is not None and buffers is not None:
            done = self.store.load(names, buffers)
        return [True] * done + [False] * (len(keys) - done)

    def save(
        self,
        keys: Sequence[str],
        prefix: Sequence[str] | None,
        addresses: Sequence[int],
        sizes: Sequence[int],
    ) -> list[bool]:
        """Store these pages; all True if the pool now has them, otherwise all False."""
        names, before = _names(keys), _names(prefix or ())
        buffers = self._shape.buffers(addresses, sizes, len(keys))
        if self.store is None or names is None or before is None or buffers is None:
            return [False] * len(keys)
        return [self.store.store(names, buffers, before)] * len(keys)

    def failed(self) -> None:
        """A call behind the boundary has failed: count it."""
        if self.store is not None:
            self.store.failed()

    def close(self) -> None:
        """Leave the pool; called once no thread uses it any more."""
        store, self.store = self.store, None
        if self._weights is not None:
            self._weights.close()
            self._weights = None
        if store is not None:
            store.close()
            _log.info("Forebay leaves: %s", dict(sorted(store.counts.items())))

    def _namespace(self) -> bytes | None:
        """The namespace once it is known; called by one thread at a time."""
        if self.obstacle is not None or self._space is None:
            return None
        if self._have_changed() and not self._settings.keep_on_reset:  # verify: weights in memory
            self._disable_while_running(_CHANGED)
            return None
        if self._space.name is None and self._weights is not None:
            if (digests := self._weights.poll()) is not None:
                self._space.know_weights(*digests)
                self._say()
            elif self._weights.why:
                sentence = f"{self._weights.why}; set weights_id, or mend the files and start again"
                self._disable_while_running(
                    Obstacle(SharingState.WEIGHTS_UNKNOWN, sentence, "weights unknown")
                )
        return self._space.name

    def _disable_while_running(self, obstacle: Obstacle) -> None:
        self.obstacle = obstacle
        _log.warning(DISABLED, obstacle.sentence)

    def _say(self) -> None:
        assert self._space is not None
        assert self._space.name is not None
        _log.info(
            "Forebay shares pages of %d tokens of %s in namespace %s",
            self._shape.tokens,
            self._model,
            self._space.name.hex()[:NAMESPACE_DIGITS],
        )


def _names(keys: Sequence[str]) -> list[bytes] | None:
    """SGLang's names of pages as bytes; None if they are not digests of everything before."""
    try:
        names = [bytes.fromhex(key) for key in keys]
    except ValueError:
        return None
    are_digests = all(len(name) == KEY_BYTES for name in names)  # verify: digests
    return names if are_digests else None
