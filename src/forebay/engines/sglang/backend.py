"""The storage backend that SGLang creates in the process of each rank.

Promised: once registered, no call raises, none takes longer than its deadline, and what is reported
as loaded is exactly what was stored. SGLang calls it from several threads. It may refuse to start,
with one sentence, if its settings are wrong, or if `strict` or `no_pool=fail` demand it.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from forebay.engines.boundary import Boundary
from forebay.engines.sglang import engine, options, weight_updates
from forebay.engines.sglang.rank import EngineRank
from forebay.engines.sharing import Obstacle, SharingState, must_share

_NO_PAGES: Final = "this release of SGLang, or its host memory, is not known"
_SEVERAL_POOLS: Final = "models with several kinds of KV are not supported yet"
_log: Final = logging.getLogger("forebay")
_Answer = TypeVar("_Answer")


class ForebayStorage(HiCacheStorage):
    """The pool as SGLang's third level of HiCache. Any thread may call any method."""

    def __init__(self, storage_config: Any, more: Any = None) -> None:
        """StartupError, in one sentence, where the settings are wrong."""
        del more
        extra = storage_config.extra_config
        settings = options.settings_of(extra)
        options.require_batches(extra)
        self._must_begin = must_share(settings)
        self._rank = EngineRank(settings)
        self._boundary = Boundary(self._rank.failed)
        options.require_prefixes(are_passed=self._boundary.call(_unknown, engine.passes_prefixes))
        self._config = storage_config
        # Before the weights' files are read, so that any later change is noticed.
        self._is_watched = weight_updates.watch(engine.updater())
        self._pool: Any = None

    # While SGLang starts.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang has allocated its host memory, which tells what a page is: begin to share."""
        super().register_mem_pool_host(mem_pool_host)
        self._pool = mem_pool_host
        begin = self._boundary.call(_unknown, partial(self._read, mem_pool_host))
        if begin is None:
            self._rank.disable(Obstacle(SharingState.DECLINED, _NO_PAGES, "unknown release"))
        elif self._must_begin:
            begin()
        else:
            self._boundary.call(self._disable_after_failure, begin)

    def _read(self, pool: Any) -> Callable[[], None]:
        """Read what SGLang tells of itself; returns a call that begins to share by it."""
        facts = engine.facts_of(self._config, is_watched=self._is_watched)
        shape, memory = engine.page_shape(pool), engine.told_by(pool)
        have_changed = partial(weight_updates.have_changed, engine.updater())
        return partial(self._rank.begin, facts, shape, memory, have_changed)

    def _disable_after_failure(self) -> None:
        """Starting has failed, and the boundary has logged it: serve as without Forebay."""
        self._rank.disable(Obstacle(SharingState.NO_POOL, "it could not begin", "failed"))

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """There is another host pool beside that of full attention: decline such models."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if not engine.is_main_pool(host_pool_name) and self._rank.obstacle is None:
            self._rank.disable(Obstacle(SharingState.DECLINED, _SEVERAL_POOLS, "several pools"))

    # Called while SGLang serves.

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many of these pages, counted from the first, are in the pool."""
        return self._bounded(lambda: 0, lambda: self._rank.exists(keys, _prefix(extra_info)))

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Load these pages into host memory; True for each page, from the first, that is there."""
        del extra_info  # a page's name covers everything before it

        def get() -> list[bool]:
            return self._rank.load(keys, *self._pool.get_page_buffer_meta(host_indices))

        return self._bounded(lambda: [False] * len(keys), get)

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Store these pages from host memory."""

        def put() -> list[bool]:
            addresses, sizes = self._pool.get_page_buffer_meta(host_indices)
            return self._rank.save(keys, _prefix(extra_info), addresses, sizes)

        return self._bounded(lambda: [False] * len(keys), put)

    def exists(self, key: str) -> bool:
        """Whether one page is in the pool."""
        return self.batch_exists([key]) == 1

    def close(self) -> None:
        """Leave the pool; SGLang's threads have ended."""
        self._bounded(lambda: None, self._rank.close)

    def clear(self) -> None:
        """Do nothing: other engines share these pages, so an operator clears them."""
        _log.warning("nothing is cleared: pages are shared; see `forebay clear`.")

    # Called for models that are declined, or without `interface_v1`.

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """Find nothing: models with several kinds of KV are declined."""
        del keys, pool_transfers, extra_info
        return PoolTransferResult.empty()

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Load nothing, for the same reason."""
        del extra_info
        return {each.name: [False] * len(each.keys or ()) for each in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Store nothing, for the same reason."""
        return self.batch_get_v2(transfers, extra_info)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """Load nothing: pages are loaded by their addresses (`batch_get_v1`)."""

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[None]:
        """Load nothing, for the same reason."""
        del target_locations, target_sizes
        return [None] * len(keys)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store nothing, for the same reason."""
        del key, value, target_location, target_sizes
        return False

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store nothing, for the same reason."""
        del keys, values, target_locations, target_sizes
        return False

    def _bounded(self, fallback: Callable[[], _Answer], work: Callable[[], _Answer]) -> _Answer:
        return self._boundary.call(fallback, work)


def _prefix(extra_info: Any) -> Sequence[str] | None:
    return None if extra_info is None else extra_info.prefix_keys


def _unknown() -> None:
    return None
