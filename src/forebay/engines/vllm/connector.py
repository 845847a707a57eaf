"""The connector that vLLM loads: one line per hook, behind one boundary.

One class for 0.26 to 0.32. Loads are asynchronous only; nothing it does can fail a request. In two
cases the engine ends (`boundary`): if a device does not copy what a forward pass already relies on
and if, before 0.30, a worker cannot do a load of a model with several groups, since vLLM cannot be
told of that failure. There only what all workers can copy is promised, so that just a broken copy
is left to end it. Nor does the connector keep vLLM from starting, unless `strict`, `no_pool=fail`
or an invalid setting demands that.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from forebay.decisions import Decision
from forebay.engines.boundary import Boundary, BrokenError, bounded
from forebay.engines.reporting.idle import IdleThread
from forebay.engines.reporting.reporter import Reporter, description_of
from forebay.engines.scheduling.lookups import LoadLimits
from forebay.engines.sharing import (
    DISABLED,
    NAMESPACE_DIGITS,
    Obstacle,
    SharingState,
    find_pool,
    must_share,
)
from forebay.engines.start.gpus import near_gpus
from forebay.engines.start.vllm import always_loads, settings_of
from forebay.engines.vllm import identity, versions
from forebay.engines.vllm.inputs import Inputs
from forebay.engines.vllm.metadata import ReportMetadata, ShardMetadata, StepMetadata
from forebay.engines.vllm.metrics import ConnectorStats, PromMetrics, stats_of
from forebay.engines.vllm.observing.traced import TracedRequests
from forebay.engines.vllm.scheduler import SchedulerConnector, untracked_outcome
from forebay.engines.weights import WeightsHash
from forebay.engines.worker import WorkerConnector
from forebay.errors import StartupError
from forebay.identity.keys import ChainRoot
from forebay.pool import service
from forebay.pool.client.session import PoolSession
from forebay.sys.clock import Clock

_RETRY_S: Final = 0.25  # between attempts to join a pool
_DECLINED_RETRY_S: Final = 5.0  # between attempts to tell a pool that this engine shares nothing
_NOT_COMPRESSED: Final = "compress does nothing here: %s."
_NOT_BY_WORKERS: Final = "not all workers encode the same pages; where one cannot, its log says why"
_log: Final = logging.getLogger("forebay")


class ForebayConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's KV cache on Forebay's pool."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _log_with_vllm()
        self.boundary = Boundary(self._failed)
        self._reported_failures = 0
        self._reported_state: SharingState | None = None
        self._described: SharingState | None = None
        self._onlooker: PoolSession | None = None  # session of an engine that shares nothing
        self._reporter: Reporter | None = None
        self._config = vllm_config
        gpus = int(vllm_config.parallel_config.world_size)
        self.settings = near_gpus(settings_of(vllm_config.kv_transfer_config), gpus)
        self._cache = kv_cache_config
        self._scheduler: SchedulerConnector | None = None
        self._worker: WorkerConnector | None = None
        self._told: ShardMetadata | None = None  # what this worker tells the scheduler
        self._weights: WeightsHash | None = None
        self._idle: IdleThread | None = None
        self._is_scheduler = role is KVConnectorRole.SCHEDULER
        self._traced: TracedRequests | None = None  # None: vLLM does not trace
        if self._is_scheduler and versions.is_traced(vllm_config):
            self._traced = TracedRequests()
        self.obstacle: Obstacle | None = None
        self._must_begin = must_share(self.settings)
        self._start_with: Callable[[list[ShardMetadata]], None] | None = None  # all workers' shards
        if versions.resumes_without_state(vllm_config, kv_cache_config):
            raise StartupError(
                "vLLM 0.26 answers wrongly where a model with recurrent states has a connector and"
                " prefix caching; take a later release, or --no-enable-prefix-caching."
            )
        self._begin(partial(self._start, vllm_config, kv_cache_config))

    def _begin(self, start: Callable[[], None]) -> None:
        """Run `start`; if it fails, serve without Forebay. StartupError ends the engine."""
        with self.boundary.turn:
            if self._must_begin:
                self._try(start)
            else:
                self.boundary.call(self._disable_after_failure, partial(self._try, start))

    def _try(self, start: Callable[[], None]) -> None:
        try:
            start()
        except StartupError as error:
            if self._must_begin:
                raise
            sentence = str(error).removesuffix(".")
            self.obstacle = Obstacle(SharingState.NO_POOL, sentence, "no pool")
            self._disable(self.obstacle)

    def _disable_after_failure(self) -> None:
        """Starting has failed, and the boundary has logged it: serve as without Forebay."""
        self._scheduler = self._worker = self._told = None
        self.obstacle = Obstacle(SharingState.NO_POOL, "it could not begin", "failed")
        self._disable(self.obstacle)

    def _start(self, config: Any, cache: Any) -> None:
        """Judge the configuration and join a pool."""
        # Both sides judge the configuration alike, but may know different things of the machine:
        # only the scheduler's side looks at the machine.
        self.obstacle = identity.declined(config, cache)
        directories = self._weights_directories(config) if self._is_scheduler else []
        if self.obstacle is not None:
            self._disable(self.obstacle)
            return
        self._shape = identity.shape_of(config, cache, self.settings)
        if self.settings.compress and self._is_scheduler and not any(self._shape.encoded_pages):
            _log.warning(_NOT_COMPRESSED, identity.why_not_compressed(config, cache))
        clock = Clock()
        if self._is_scheduler:
            config.kv_transfer_config.kv_load_failure_policy = "recompute"
            self._start_with = partial(self._start_scheduler, config, clock, directories)
            if self._shape.ranks == 1:
                self._start_with([])
        else:
            path, uids = service.socket_path(self.settings), self.settings.allow_uid
            self._told = identity.told_by(config, cache, self._shape)
            self._worker = WorkerConnector(path, self._shape, clock, uids, self._told.shard)
            self._worker.is_checked = self.settings.verify_compress

    def _weights_directories(self, config: Any) -> list[str]:
        """The directories of the weights to hash; empty if there is nothing to hash."""
        if self.obstacle is not None or self.settings.weights_id:
            return []
        found = identity.weights_directories(config)
        if isinstance(found, list):
            return found
        self.obstacle = found
        return []

    def _disable(self, obstacle: Obstacle) -> None:
        """Serve without Forebay: join and start no pool. StartupError if `strict`."""
        if self.settings.strict:
            raise StartupError(f"Forebay is strict and cannot share: {obstacle.sentence}.")
        if self._is_scheduler:
            _log.warning(DISABLED, obstacle.sentence)

    def _start_scheduler(
        self, config: Any, clock: Clock, directories: list[str], workers: list[ShardMetadata]
    ) -> None:
        """Join a pool; if there are several workers, all of them have told their shards."""
        self._start_with = None
        if workers or self._shape.ranks > 1:
            self._take_shape(workers)
            if not identity.are_all(workers, self._shape):
                self._disable_for_worker()
                return
        socket_path = find_pool(self.settings)
        self._model = str(config.model_config.model)
        self._namespace = identity.Namespace(config, self._cache, self._shape, workers)
        if self.settings.weights_id:
            self._namespace.name_weights(self.settings.weights_id)
        else:
            self._weights = WeightsHash(*directories)
        wanted = self.settings
        times = (wanted.lookup_deadline_ms, wanted.load_deadline_ms)
        limits = LoadLimits(
            max(1, wanted.min_tokens),
            *times,
            always_load=always_loads(config.kv_transfer_config),
            may_fail=versions.reports_failed_requests(),
        )
        # The scheduler's side never touches the slab; its workers map it.
        uids = wanted.allow_uid
        session = PoolSession(socket_path, clock, maps_slab=False, retry_s=_RETRY_S, pool_uids=uids)
        inputs = Inputs(config, self._shape.chunk_tokens)
        self._scheduler = SchedulerConnector(session, self._shape, limits, inputs)
        if versions.publishes_events(config):
            self._scheduler.publish(self._cache)
        self._trace(self._scheduler.reporter)
        self._scheduler.join()
        self._identify()
        self._idle = IdleThread(self.boundary, self._look_after_pool)

    def _look_after_pool(self) -> None:
        """Called while the engine is idle: identify, describe, and notice a pool that changed."""
        scheduler = self._scheduler
        if scheduler is not None:
            self._identify()
            self._describe(scheduler.reporter)
            scheduler.look_after_pool()

    def _failed(self) -> None:
        """A call behind the boundary has failed: count it against the pool's error budget."""
        if self._scheduler is not None:
            self._scheduler.budget.failed(time.monotonic())

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """0.29 and later: the layout in which a block is one run of bytes."""
        del vllm_config
        return versions.wanted_layout()

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Up to 0.28: no, since pages are copied layer by layer."""
        return False

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a store that is lost is just a later miss."""
        return False

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """All workers have allocated their KV cache: start the scheduler's side, or correct it.

        A worker sees more of the KV cache than the scheduler, and may have declined it.
        """
        workers = list(metadata.values())
        if self._start_with is not None:
            self._begin(partial(self._start_with, workers))
        elif self._scheduler is not None:
            self._begin(partial(self._restart_if_shape_differs, workers))

    def _restart_if_shape_differs(self, workers: list[ShardMetadata]) -> None:
        """Start anew if workers have another shape than assumed; decline if a worker did."""
        if not identity.are_all(workers, self._shape):
            self._disable_for_worker()
            return
        has_unlike = any(each.unlike for each in workers)
        shape = identity.shape_of(self._config, self._cache, self.settings, workers)
        if has_unlike or shape != self._shape:
            self._close_sides()
            directories = self._weights_directories(self._config)
            self._take_shape(workers)
            told = workers if has_unlike else []
            self._start_scheduler(self._config, Clock(), directories, told)

    def _take_shape(self, workers: list[ShardMetadata]) -> None:
        """Use the shape of chunks that these workers have."""
        shape = identity.shape_of(self._config, self._cache, self.settings, workers)
        if any(self._shape.encoded_pages) and not any(shape.encoded_pages):
            _log.warning(_NOT_COMPRESSED, _NOT_BY_WORKERS)
        self._shape = shape

    def _disable_for_worker(self) -> None:
        """Share nothing, since some worker would not copy what the scheduler's side asks for."""
        if self._scheduler is not None:
            self._scheduler.close()
        self._scheduler = None
        self.obstacle = Obstacle(SharingState.DECLINED, "a worker could not begin", "worker")
        self._disable(self.obstacle)

    # The scheduler's side.

    @bounded(lambda: None)
    def on_new_request(self, request: Any) -> None:
        """A request has arrived."""
        if self._traced is not None:
            self._traced.arrived(request)
        if self._scheduler is not None:
            self._identify()
            self._scheduler.arrived(request)

    @bounded(lambda: (0, False))
    def get_num_new_matched_tokens(
        self,
        request: Any,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """How many tokens more than the engine has can be loaded; None: ask again."""
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched(request, num_computed_tokens)

    @bounded(lambda: None)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks were allocated for a load."""
        if self._scheduler is not None and num_external_tokens:
            self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    @bounded(dict)
    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:  # noqa: ARG002
        """The tokens being loaded, by their source, for vLLM's own metrics (0.32 and later)."""
        found = {} if self._scheduler is None else self._scheduler.hit_sources(request)
        return versions.hit_sources(found)

    @bounded(StepMetadata)
    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """What the workers have to do in this step."""
        scheduler = self._scheduler
        if scheduler is None:
            self.boundary.call(lambda: None, partial(self._report_declined, scheduler_output))
            return StepMetadata()
        self.boundary.call(lambda: None, self._identify)
        self.boundary.call(lambda: None, partial(self._describe, scheduler.reporter))
        return scheduler.build(scheduler_output, self.boundary)

    @bounded(lambda: None)
    def update_connector_output(self, connector_output: Any) -> None:
        """Take over what the workers did."""
        if self._scheduler is not None:
            report = getattr(connector_output, "kv_connector_worker_meta", None)
            received = connector_output.finished_recving or ()
            failed = set(getattr(connector_output, "failed_recving", None) or ())
            self._scheduler.reported(
                report if isinstance(report, ReportMetadata) else None, received, failed
            )

    @bounded(lambda: (False, None))
    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:  # noqa: ARG002
        """A request has ended; its blocks are never held back."""
        if self._scheduler is not None:
            self._scheduler.finished(request.request_id)
        if self._traced is not None:
            self._traced.finished(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """As `request_finished`, for models with several groups."""
        answer: tuple[bool, None] = self.request_finished(request, block_ids)
        return answer

    @bounded(lambda: False)
    def has_pending_push_work(self) -> bool:
        """Whether vLLM must go on stepping, for example until a store is reported."""
        return self._scheduler is not None and self._scheduler.has_work

    @bounded(lambda: True)
    def reset_cache(self) -> bool:
        """Forget what was offered: pages may hold something else from now on.

        The weights may have changed too: use a new namespace that nobody shares, unless
        `keep_on_reset`. Nothing is deleted.
        """
        if self._scheduler is not None:
            self._scheduler.drop_offers()
        if self._scheduler is not None and not self.settings.keep_on_reset:
            self._namespace.make_private()
            self._scheduler.root = None
            self._scheduler.reset()
            self._identify()
        return True

    @bounded(list)
    def take_events(self) -> list[Any]:
        """KV events about the pool, which vLLM publishes with its own."""
        return [] if self._scheduler is None else self._scheduler.take_events()

    # The worker's side.

    def get_handshake_metadata(self) -> ShardMetadata | None:
        """What this worker has of every block; None if it declined its KV cache."""
        return self._told

    @bounded(lambda: None)
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The KV cache is allocated."""
        worker, told = self._worker, self._told
        if worker is not None and told is not None:
            self._told = None  # if this fails, the worker has declined
            worker.register(kv_caches, self._cache.num_blocks)
            self._told = replace(told, encodes=worker.encodes)
            self._prepare(worker)

    def _prepare(self, worker: WorkerConnector) -> None:
        """Map the pool's memory before the first request, if there will be a pool."""
        wanted = self.settings
        if wanted.weights_id or isinstance(identity.weights_directories(self._config), list):
            is_started = wanted.no_pool == "start"
            worker.prepare(partial(service.join_or_start, wanted) if is_started else None)

    @bounded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Called before the forward pass: begin this step's stores, which cannot wait longer."""
        if self._worker is not None and isinstance(kv_connector_metadata, StepMetadata):
            self._worker.begin(kv_connector_metadata)

    @bounded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin this step's loads."""
        metadata, worker = self._get_connector_metadata(), self._worker
        if worker is None or not isinstance(metadata, StepMetadata):
            return
        self.boundary.call(lambda: None, partial(worker.begin, metadata))
        loads, metadata.loads = metadata.loads, []
        for load in loads:
            # Whatever happens, the engine must hear that the load has ended.
            self.boundary.call(partial(worker.fail, load), partial(worker.load, load))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are never waited for here."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: whole blocks are stored a step later."""

    def wait_for_save(self) -> None:
        """Do nothing: stores are never waited for here."""

    @bounded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:  # noqa: ARG002
        """Requests whose loads have ended."""
        if self._worker is None:
            return None, None
        received, _ = self._worker.take_received()
        return None, received or None

    @bounded(lambda: versions.transfer_results(set(), set()))
    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:  # noqa: ARG002
        """As `get_finished`, with the requests whose loads failed (0.30 and later)."""
        if self._worker is None:
            return versions.transfer_results(set(), set())
        return versions.transfer_results(*self._worker.take_received())

    @bounded(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that could not be loaded (before 0.30)."""
        if self._worker is None:
            return set()
        blocks = self._worker.take_failed_blocks()
        if blocks and self._shape.local and not versions.reports_failed_requests():
            raise BrokenError("vLLM before 0.30 cannot compute what one of several groups lacks")
        return set() if versions.reports_failed_requests() else blocks

    @bounded(lambda: None)
    def build_connector_worker_meta(self) -> ReportMetadata | None:
        """What this worker has done since the last report."""
        report = self._worker.take_report() if self._worker is not None else None
        return None if report is None else ReportMetadata.of(report)

    # What vLLM's logger and its /metrics page show.

    @bounded(lambda: None)
    def get_kv_connector_stats(self) -> ConnectorStats | None:
        """What was counted since the last step, on either side."""
        counts: dict[str, int] = {}
        hooks: dict[str, list[float]] = {}
        if self._scheduler is not None:
            counts, hooks = self._scheduler.take_counts(), self.boundary.take_seconds()
        elif self._worker is not None:
            counts = self._worker.take_counts()
        failures = self.boundary.failures - self._reported_failures
        if failures:
            self._reported_failures += failures
            counts["failures.scheduler" if self._is_scheduler else "failures.worker"] = failures
        state, before = self._sharing_state(), self._reported_state
        self._reported_state = state
        requests = [] if self._traced is None else self._traced.take(counts)
        told = state if state != before or counts or hooks else None
        reason = self.obstacle.reason if self.obstacle is not None and told is not None else ""
        return stats_of(counts, hooks, told, requests, reason)

    def _sharing_state(self) -> SharingState | None:
        """Whether the engine shares, as the scheduler's side knows; None on the worker's side."""
        if self.obstacle is not None:
            return self.obstacle.state if self._is_scheduler else None
        if self._scheduler is None:
            return None
        if self._scheduler.root is None:
            return SharingState.HASHING_WEIGHTS
        return SharingState.SHARING if self._scheduler.is_joined else SharingState.NO_POOL

    def _describe(self, reporter: Reporter) -> None:
        """Tell the pool who this engine is, if that has changed."""
        state = self._sharing_state()
        if state is None or state is self._described:
            return
        self._described = state
        config, root = self._config, self._scheduler and self._scheduler.root
        reporter.describe(
            description_of(
                str(config.model_config.served_model_name or config.model_config.model),
                f"vLLM {versions.RELEASE}",
                state.value,
                self.obstacle.sentence if self.obstacle is not None else "",
                root.namespace if root else b"",
                chunk_tokens=root.chunk_tokens if root else 0,
                prefix_caching=bool(config.cache_config.enable_prefix_caching),
                gpu_cache_bytes=self._gpu_cache_bytes(),
            )
        )

    def _gpu_cache_bytes(self) -> int:
        """The size of the engine's own KV cache, over all ranks whose KV differs; 0: not known."""
        if self._scheduler is None:
            return 0
        return int(self._cache.num_blocks) * self._shape.engine_block_bytes * self._shape.shards

    def _trace(self, reporter: Reporter) -> None:
        """If vLLM traces, have spans made of what is reported."""
        if self._traced is not None:
            reporter.on_outcome = self._traced.told

    def _report_declined(self, output: Any) -> None:
        """Tell a running pool that this engine shares nothing with it, and why."""
        if not self._is_scheduler or self.obstacle is None:
            return
        if self._reporter is None or self._onlooker is None:
            self._onlooker = PoolSession(
                service.socket_path(self.settings),
                Clock(),
                maps_slab=False,
                retry_s=_DECLINED_RETRY_S,
                pool_uids=self.settings.allow_uid,
            )
            self._reporter = Reporter(self._onlooker)
            self._trace(self._reporter)
        self._describe(self._reporter)
        self._onlooker.poll()
        for new in output.scheduled_new_reqs:
            self._reporter.tell(untracked_outcome(new, Decision.DECLINED))
        self._reporter.send()
        while self._onlooker.take(0.0) is not None:  # which also sends
            pass

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ConnectorStats:
        """Stats from data that came from another process."""
        return ConnectorStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PromMetrics:
        """Our metrics in vLLM's registry; if vLLM traces, our spans are made here too."""
        made = PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        if versions.is_traced(vllm_config):
            Boundary().call(lambda: None, made.make_spans)
        return made

    def shutdown(self) -> None:
        """The engine ends."""
        self._close_sides()
        if self._onlooker is not None:
            self._onlooker.close()
        if self._scheduler is not None:
            _log.info("Forebay leaves: %s", dict(sorted(self._scheduler.counts.items())))

    def _close_sides(self) -> None:
        if self._idle is not None:
            self._idle.close()
        for side in (self._scheduler, self._worker):
            if side is not None:
                with self.boundary.turn:
                    self.boundary.call(lambda: None, side.close)
        if self._weights is not None:
            self._weights.close()

    def _identify(self) -> None:
        """Begin to share once the namespace is known."""
        scheduler = self._scheduler
        if scheduler is None or scheduler.root is not None or self.obstacle is not None:
            return
        if self._weights is not None and (digests := self._weights.poll()) is not None:
            self._namespace.know_weights(*digests)
        elif self._weights is not None and self._weights.why:
            sentence = f"{self._weights.why}; set weights_id, or mend the files and start again"
            self.obstacle = Obstacle(SharingState.WEIGHTS_UNKNOWN, sentence, "weights unknown")
            _log.warning(DISABLED, sentence)
        if self._namespace.name is None:
            return
        tokens, realm = self._shape.chunk_tokens, self.settings.realm
        scheduler.root = ChainRoot(self._namespace.name, tokens, realm=realm)
        _log.info(
            "Forebay shares chunks of %d tokens of %s in namespace %s",
            self._shape.chunk_tokens,
            self._model,
            self._namespace.name.hex()[:NAMESPACE_DIGITS],
        )


def _log_with_vllm() -> None:
    """Let our lines appear in vLLM's log, at its level, unless the root logger has a handler."""
    if not _log.hasHandlers():
        theirs = logging.getLogger("vllm")
        _log.setLevel(theirs.level)
        for handler in theirs.handlers:
            _log.addHandler(handler)
