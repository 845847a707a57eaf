"""What the connector makes of a configuration, in vLLM's own objects: join, decline, refuse."""

import copy
import io
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.vllm.real.forked import VARIABLES
from tests.engines.vllm.test_scheduler_side import Computed, Output, request_of
from tests.pool_process import running_pool, short_directory, wait_until

from forebay.errors import StartupError

pytestmark = pytest.mark.vllm
TRANSFER = {
    "kv_connector": "ForebayConnector",
    "kv_connector_module_path": "forebay.engines.vllm.connector",
    "kv_role": "kv_both",
}


@pytest.fixture(scope="module")
def config(model: Path) -> Any:
    """As vLLM makes it from a user's arguments."""
    os.environ.update(VARIABLES)
    from vllm.engine.arg_utils import EngineArgs

    wanted = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 20,
        kv_transfer_config=TRANSFER,
    )
    return wanted.create_engine_config()


@pytest.fixture
def place() -> Iterator[Path]:
    with short_directory() as path:
        yield path


def full() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=32, dtype=torch.float32)


def caches(*specs: Any) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    groups = [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]
    made = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)
    if hasattr(made, "kv_cache_layout"):
        made.kv_cache_layout = "LBHNC"
    return made


def connector(config: Any, cache: Any, role: Any = None, /, **settings: Any) -> Any:
    """The scheduler's side, or another, made as vLLM makes it."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    role = role or KVConnectorRole.SCHEDULER
    config = copy.copy(config)
    config.kv_transfer_config = copy.copy(config.kv_transfer_config)
    config.kv_transfer_config.kv_connector_extra_config = settings
    return KVConnectorFactory.create_connector(config, role, cache)


def test_an_ordinary_model_joins(config: Any, place: Path) -> None:
    with running_pool(place) as pool:
        made = connector(config, caches(full()), socket=pool.socket)
        assert made.obstacle is None
        assert pool.number("engines") == 1
        made.shutdown()


def halves() -> Any:
    import torch

    return replace(full(), dtype=torch.bfloat16)


def test_engines_that_encode_share_with_each_other_alone(config: Any, place: Path) -> None:
    """A name for those with it, another for those without it, as before there was such a code."""
    with running_pool(place) as pool:
        settings = {"socket": pool.socket, "weights_id": "a"}
        names, sizes = [], []
        for compress in (False, True, True):
            made = connector(config, caches(halves()), compress=compress, **settings)
            names.append(made._namespace.name)
            sizes.append(made._scheduler._shape.chunk_bytes)
            made.shutdown()
    assert names[0] != names[1] == names[2]
    assert sizes[0] / sizes[1] > 1.29, "pages of 4 KiB: a head of them is 0.8 percent"


def worker(config: Any, cache: Any, **settings: Any) -> Any:
    """A worker's side, made as vLLM makes it."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    return connector(config, cache, KVConnectorRole.WORKER, **settings)


def pages_of(spec: Any) -> dict[str, Any]:
    """The KV cache of a worker with one layer."""
    import torch

    return {"layer.0": torch.zeros(8, spec.page_size_bytes // 2, dtype=torch.bfloat16)}


def told_by(made: Any, spec: Any) -> Any:
    made.register_kv_caches(pages_of(spec))
    return made.get_handshake_metadata()


@pytest.mark.parametrize("can_encode", [True, False])
def test_where_the_worker_cannot_encode_chunks_are_stored_as_they_are(
    config: Any, place: Path, caplog: pytest.LogCaptureFixture, can_encode: bool
) -> None:
    """By the name of those that do not want it, with which it shares then."""
    with running_pool(place) as pool:
        settings = {"socket": pool.socket, "weights_id": "a"}
        plain = connector(config, caches(halves()), **settings)
        made = connector(config, caches(halves()), compress=True, **settings)
        at_work = worker(config, caches(halves()), compress=True, **settings)
        told = told_by(at_work, halves())
        assert told.encodes == (halves().page_size_bytes,)
        if not can_encode:  # as a worker without kernels tells
            told = replace(told, encodes=(0,))
        made.set_xfer_handshake_metadata_pp_aware({(0, 0): told})
        assert made.obstacle is None
        shapes = [each._scheduler._shape for each in (plain, made)]
        assert (shapes[0] == shapes[1]) is not can_encode
        names = {each._namespace.name for each in (plain, made)}
        assert len(names) == 1 + can_encode
        assert [each._scheduler.root.namespace for each in (plain, made)] == [
            plain._namespace.name,
            made._namespace.name,
        ]
        for each in (plain, made, at_work):
            each.shutdown()
    assert caplog.text.count("not all workers encode the same pages") == int(not can_encode)
    assert made.boundary.failures == 0


@pytest.mark.parametrize("sizes", [((2048,), (0,)), ((2048,), (1024,)), ((), ())], ids=str)
def test_workers_that_do_not_encode_the_same_pages_encode_none(
    config: Any, place: Path, sizes: tuple[tuple[int, ...], ...]
) -> None:
    """Where their pages have other sizes, so have their shards: they would lie in one another."""
    with running_pool(place) as pool:
        shapes = []
        spec = replace(halves(), num_kv_heads=1)
        assert spec.page_size_bytes == 2048
        for wanted in (sizes, ((2048,), (2048,))):
            settings = {"socket": pool.socket, "weights_id": "a", "compress": True}
            made = connector(of_ranks(config, 2), caches(spec), **settings)
            told_by_all = told(("layer.0",), 0, 1)
            workers = {
                rank: replace(each, page_bytes=2048, encodes=encodes)
                for (rank, each), encodes in zip(told_by_all.items(), wanted, strict=True)
            }
            made.set_xfer_handshake_metadata_pp_aware(workers)
            assert made.obstacle is None
            shapes.append(made._scheduler._shape)
            made.shutdown()
    assert [shape.is_encoded for shape in shapes] == [False, True]


def test_a_worker_whose_kv_cache_is_not_as_declared_declines(config: Any, place: Path) -> None:
    """Else the engine would be promised what nobody can copy, load after load."""
    with running_pool(place) as pool:
        settings = {"socket": pool.socket, "weights_id": "a"}
        made = connector(config, caches(full()), **settings)
        at_work = worker(config, caches(full()), **settings)
        assert at_work.get_handshake_metadata() is not None
        assert told_by(at_work, replace(full(), num_kv_heads=3)) is None
        made.set_xfer_handshake_metadata_pp_aware({})  # vLLM leaves out who tells nothing
        assert made.obstacle.sentence == "a worker could not begin"
        for each in (made, at_work):
            each.shutdown()


@pytest.mark.parametrize(
    ("answers", "is_aligned", "why"),
    [
        (["", ""], True, ""),
        (["", "no"], True, "no"),
        (["", RuntimeError("of a compiler")], True, "its kernels cannot be compiled"),
        (["", ""], False, "the KV cache is not aligned"),
        ([], False, ""),
    ],
)
def test_why_a_device_does_not_encode_is_told_whatever_its_compiler_raises(
    answers: list[Any], is_aligned: bool, why: str
) -> None:
    from forebay.engines.worker import why_not_encoded

    def warm(size: int) -> str:
        if isinstance(answers[size], Exception):
            raise answers[size]
        return str(answers[size])

    assert why_not_encoded(warm, range(len(answers)), is_aligned=is_aligned) == why


def test_pages_that_cannot_be_encoded_are_said_to_be_so(
    config: Any, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_pool(place) as pool:
        odd = replace(halves(), head_size=33)
        settings = {"socket": pool.socket, "weights_id": "a", "compress": True}
        made = connector(config, caches(replace(odd, num_kv_heads=1)), **settings)
        assert made.obstacle is None
        made.shutdown()
    assert "compress does nothing here: pages of several sizes" in caplog.text
    assert "the KV is bfloat16" not in caplog.text


@pytest.mark.parametrize("compress", [True, False])
def test_kv_that_has_nothing_to_spare_is_not_encoded_and_shared_as_ever(
    config: Any, place: Path, caplog: pytest.LogCaptureFixture, compress: bool
) -> None:
    with running_pool(place) as pool:
        settings = {"socket": pool.socket, "weights_id": "a"}
        plain = connector(config, caches(full()), **settings)
        made = connector(config, caches(full()), compress=compress, **settings)
        assert made.obstacle is None
        assert made._namespace.name == plain._namespace.name
        for each in (plain, made):
            each.shutdown()
    said = "compress does nothing here: only bfloat16 can be encoded, and the KV is float32."
    assert caplog.text.count(said) == int(compress)


def test_our_lines_appear_in_vllms_log(
    config: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in an engine: pytest has some
    ours, theirs = logging.getLogger("forebay"), logging.getLogger("vllm")
    for logger in (ours, theirs):
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logger.level)
    log = io.StringIO()
    theirs.setLevel(logging.INFO)
    theirs.addHandler(logging.StreamHandler(log))
    with running_pool(place) as pool:
        made = connector(config, caches(full()), socket=pool.socket, weights_id="a")
        made.shutdown()
    ours.setLevel(logging.NOTSET)
    shared = re.search(
        r"^Forebay shares chunks of \d+ tokens of (\S+) in namespace (\w+)$",
        log.getvalue(),
        re.MULTILINE,
    )
    assert shared is not None, log.getvalue()
    assert shared[1] == config.model_config.model
    assert made._namespace.name.hex().startswith(shared[2])


def declined_caches() -> dict[str, Any]:
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

    heads: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 32}
    window = SlidingWindowSpec(sliding_window=64, dtype=torch.float32, **heads)
    state = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=(torch.float32,))
    return {
        "window": caches(window),
        "mamba": caches(state),
        "full of two sizes": caches(full(), replace(full(), block_size=32)),
    }


@pytest.mark.parametrize("kind", ["window", "mamba", "full of two sizes"])
def test_other_kinds_of_attention_are_declined(
    config: Any, place: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = connector(config, declined_caches()[kind], socket=str(place / "nobody"))
    is_disabled(made, caplog)


def test_groups_of_one_kind_are_one_with_several_tables(config: Any, place: Path) -> None:
    """A chunk is a whole number of blocks in each; group 0 is full attention, wherever it is."""
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec

    heads: dict[str, Any] = {"num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    window = SlidingWindowSpec(block_size=48, sliding_window=100, **heads)
    chunked = ChunkedLocalAttentionSpec(block_size=32, attention_chunk_size=64, **heads)
    cache = caches(window, chunked, full(), window)
    with running_pool(place) as pool:
        made = connector(config, cache, socket=pool.socket, weights_id="a", chunk_tokens=100)
        alone = connector(config, caches(full()), socket=pool.socket, weights_id="a")
        assert made.obstacle is None
        groups = made._shape.groups
        assert [(group.tables, group.block_tokens) for group in groups] == [
            ((2,), 16),
            ((1,), 32),
            ((0, 3), 48),
        ]
        assert {group.chunk_tokens for group in groups} == {96}
        assert [group.reach.tokens for group in groups] == [0, 64, 100]
        assert made._namespace.name != alone._namespace.name
        made.shutdown()
        alone.shutdown()


def test_0_26_is_refused_where_it_would_resume_without_a_state(
    config: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.engines.vllm import versions

    states = declined_caches()["mamba"]
    is_disabled = connector(config, states, socket=str(place / "nobody"))
    assert is_disabled.obstacle is not None, "of later releases it only stands aside"
    monkeypatch.setattr(versions, "__version__", "0.26.0")
    config = copy.copy(config)
    config.cache_config = copy.copy(config.cache_config)
    config.cache_config.enable_prefix_caching = True
    with pytest.raises(StartupError, match=r"0\.26 answers wrongly"):
        connector(config, states, socket=str(place / "nobody"))


def of_ranks(config: Any, ranks: int) -> Any:
    """The same, tensor parallel."""
    config = copy.copy(config)
    config.parallel_config = copy.copy(config.parallel_config)
    for name in ("tensor_parallel_size", "world_size"):
        object.__setattr__(config.parallel_config, name, ranks)
    return config


def told(layers: tuple[str, ...], *ranks: int) -> dict[tuple[int, int], Any]:
    """What workers tell before the first request."""
    from forebay.engines.geometry import Shard
    from forebay.engines.vllm.metadata import ShardMetadata

    page = full().page_size_bytes
    return {(0, rank): ShardMetadata(Shard(rank, rank), layers, page) for rank in ranks}


def test_with_several_workers_it_joins_when_all_have_told_of_their_shards(
    config: Any, place: Path
) -> None:
    with running_pool(place) as pool:
        names = []
        for layers in (("layer.0",), ("layer.0", "layer.1")):
            settings = {"socket": pool.socket, "weights_id": "a"}
            made = connector(of_ranks(config, 2), caches(full()), **settings)
            assert pool.number("engines") == 0, "it does not know what a chunk has"
            made.set_xfer_handshake_metadata_pp_aware(told(layers, 0, 1))
            assert made.obstacle is None
            assert pool.number("engines") == 1
            shape = made._scheduler._shape
            assert shape.block_bytes == full().page_size_bytes
            wanted = 2 * len(layers) * full().page_size_bytes * shape.chunk_blocks
            assert shape.chunk_bytes == wanted, "by what the workers say"
            names.append(made._namespace.name)
            made.shutdown()
            wait_until(lambda: not pool.number("engines"), "its end")
    assert names[0] != names[1]


@pytest.mark.parametrize("ranks", [(), (0,), (0, 0), (1,)], ids=str)
def test_without_one_of_its_workers_an_engine_is_declined(
    config: Any, place: Path, ranks: tuple[int, ...]
) -> None:
    made = connector(of_ranks(config, 2), caches(full()), socket=str(place / "nobody"))
    made.set_xfer_handshake_metadata_pp_aware(told(("layer.0",), *ranks))
    assert made.obstacle.sentence == "a worker could not begin"
    strict = connector(of_ranks(config, 2), caches(full()), strict=True)
    with pytest.raises(StartupError, match="a worker could not begin"):
        strict.set_xfer_handshake_metadata_pp_aware(told(("layer.0",), *ranks))


def test_the_scheduler_stands_aside_where_the_only_worker_declines(
    config: Any, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It sees one layer of several kinds, the worker sees all; a load would never end."""
    with running_pool(place) as pool:
        made = connector(config, caches(full()), socket=pool.socket)
        made.set_xfer_handshake_metadata_pp_aware(told(("layer.0",), 0))
        assert not made.obstacle
        made.set_xfer_handshake_metadata_pp_aware({})
        assert made.obstacle.sentence == "a worker could not begin"
        assert "a worker could not begin" in caplog.text
        assert made.get_num_new_matched_tokens(request_of([1] * 600), 0) == (0, False)
        wait_until(lambda: not pool.number("engines"), "its end")
        made.shutdown()


DECLINED: dict[str, tuple[str, str, Any]] = {
    "prefill context parallel": ("parallel_config", "prefill_context_parallel_size", 2),
    "speculative": ("", "speculative_config", SimpleNamespace(method="custom_class")),
    "scales at run time": ("cache_config", "calculate_kv_scales", True),
    "pooling": ("model_config", "runner_type", "pooling"),
}


@pytest.mark.parametrize("what", DECLINED)
def test_other_ways_to_run_are_declined(
    config: Any, place: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    part, name, value = DECLINED[what]
    config = copy.copy(config)
    if part:
        changed = copy.copy(getattr(config, part))
        object.__setattr__(changed, name, value)
        object.__setattr__(config, part, changed)
    else:
        object.__setattr__(config, name, value)
    is_disabled(connector(config, caches(full()), socket=str(place / "nobody")), caplog)


def is_disabled(
    made: Any, caplog: pytest.LogCaptureFixture, state: str = "declined", failures: int = 0
) -> None:
    """One line in the log, a gauge, and every hook does nothing."""
    lines = [line for line in caplog.messages if "Forebay is disabled for this engine" in line]
    assert len(lines) == 1, caplog.messages
    assert made.get_num_new_matched_tokens(None, 0) == (0, False)
    assert made.request_finished_all_groups(None, ()) == (False, None)
    assert not made.has_pending_push_work()
    assert made.reset_cache() is True
    assert made.get_kv_connector_stats().data["state"] == state
    assert made.get_kv_connector_stats() is None, "said once, and again with what else there is"
    assert made.boundary.failures == failures


def no_files(config: Any, model: str, load_format: str = "auto", **model_fields: str) -> Any:
    """The same configuration with another loader, or another place of its weights."""
    config = copy.copy(config)
    for part, fields in (
        ("load_config", {"load_format": load_format}),
        ("model_config", {"model": model, **model_fields}),
    ):
        changed = copy.copy(getattr(config, part))
        for name, value in fields.items():
            object.__setattr__(changed, name, value)
        object.__setattr__(config, part, changed)
    return config


UNKNOWN: dict[str, dict[str, str]] = {
    "there are no weight files": {},
    "load_format=dummy": {"load_format": "dummy"},
    "load_format=tensorizer": {"load_format": "tensorizer"},
    "load_format=runai_streamer": {"load_format": "runai_streamer", "model_weights": "s3://m"},
    "no weight files in nobody/has-this": {"model": "nobody/has-this"},
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_unknown_weights_share_nothing_unless_they_are_named(
    config: Any, place: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    changed = no_files(config, **{"model": str(place), **UNKNOWN[why]})
    socket = str(place / "nobody")
    made = connector(changed, caches(full()), socket=socket)
    is_disabled(made, caplog, "weights_unknown")
    assert why in caplog.text
    assert not list(place.iterdir()), "no pool is started for nothing"
    with pytest.raises(StartupError, match=r"strict .*weights_id"):
        connector(changed, caches(full()), socket=socket, strict=True)
    named = connector(changed, caches(full()), socket=socket, no_pool="serve", weights_id="mine")
    assert named.obstacle is None
    assert named.get_kv_connector_stats().data["state"] == "no_pool"
    named.shutdown()


def test_weights_that_cannot_be_read_are_told_when_that_is_known(
    config: Any, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (place / "model.safetensors").symlink_to(place)  # a name that opens as no file
    with running_pool(place) as pool:
        made = connector(
            no_files(config, str(place)), caches(full()), socket=pool.socket, strict=True
        )
        assert made.get_kv_connector_stats().data["state"] == "hashing_weights"
        made._weights._process.wait(60)
        made.build_connector_meta(None)
        assert made.get_kv_connector_stats().data["state"] == "weights_unknown"
        made.shutdown()
    (line,) = [line for line in caplog.messages if "Forebay is disabled for this engine" in line]
    assert "weights_id" in line


@pytest.mark.parametrize("keeps", [True, False], ids=["keeps", "leaves"])
def test_t54_what_was_offered_before_a_reset_is_never_copied(
    config: Any, place: Path, keeps: bool
) -> None:
    """The pool answers after 1.2 s; by then the engine may have slept, and its pages be others'."""
    settings = {"weights_id": "w", "chunk_tokens": 64, "min_tokens": 16, "keep_on_reset": keeps}
    with running_pool(place, disk=False) as pool:
        made = connector(config, caches(full()), socket=pool.socket, **settings)
        made.on_new_request(request_of([8] * 65))
        pool.signal(signal.SIGSTOP)
        assert not made.build_connector_meta(Computed).stores, "it is offered"
        time.sleep(1.2)
        assert not made.has_pending_push_work(), "nothing keeps the engine from sleeping"
        assert made.reset_cache() is True
        pool.signal(signal.SIGCONT)
        steps = [made.build_connector_meta(Output)]
        while made._scheduler._stores._batches:
            made._scheduler._pool.connection.rest(time.monotonic() + 1)
            steps.append(made.build_connector_meta(Output))
        assert [step.stores for step in steps if step.stores] == []
        wait_until(lambda: not pool.held()["leased_slots"], "the slot to be given back")
        assert pool.number("leases") == 1, "the control: there was one"
        made.shutdown()
