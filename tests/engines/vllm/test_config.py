"""What the connector makes of a configuration, in vLLM's own objects: join, decline, refuse."""

import copy
import io
import logging
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.vllm.real import forked
from tests.engines.vllm.real.forked import VARIABLES
from tests.engines.vllm.real.models import made_drafter
from tests.engines.vllm.test_scheduler_side import Computed, Output, request_of
from tests.pool_process import running_pool, short_directory, wait_until

from forebay.errors import StartupError
from forebay.pool.messages import Refused
from forebay.pool.wire import encode

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


def connector(config: Any, cache: Any, **settings: Any) -> Any:
    """The scheduler's side, made as vLLM makes it."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    config = copy.copy(config)
    config.kv_transfer_config = copy.copy(config.kv_transfer_config)
    config.kv_transfer_config.kv_connector_extra_config = settings
    return KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache)


def test_an_ordinary_model_joins(config: Any, place: Path) -> None:
    with running_pool(place) as pool:
        made = connector(config, caches(full()), socket=pool.socket)
        assert made.obstacle is None
        assert pool.number("engines") == 1
        made.shutdown()


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


def test_the_namespace_of_one_worker_has_the_fields_that_it_always_had(config: Any) -> None:
    """What earlier releases stored is found: a field more would be another namespace."""
    from forebay.engines.vllm import identity

    cache = caches(full())
    made = identity.Namespace(config, cache, identity.geometry(config, cache, 0))
    always = (
        "engine version device model dtype quantization max_model_len kv_dtype kv_cache_dtype"
        " kv_heads head_size layout sliding_window layers page_bytes block_tokens chunk_blocks tp"
    )
    assert list(made._fields) == always.split()


DECLINED: dict[str, tuple[str, str, Any]] = {
    "context parallel": ("parallel_config", "decode_context_parallel_size", 2),
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


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two drafters of one shape with other weights."""
    places = [tmp_path_factory.mktemp("drafter") for _ in range(2)]
    return [forked.call(made_drafter, place, seed) for seed, place in enumerate(places, 7)]


def speculating(model: Path, speculation: dict[str, Any]) -> Any:
    """A configuration, as vLLM makes it."""
    from vllm.engine.arg_utils import EngineArgs

    wanted = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 20,
        speculative_config=speculation,
        kv_transfer_config=TRANSFER,
    )
    return wanted.create_engine_config()


def test_t10_how_an_engine_speculates_and_with_which_drafter_is_in_the_name(
    config: Any, model: Path, drafters: list[Path], place: Path
) -> None:
    from forebay.engines.vllm import identity
    from forebay.engines.weights import hash_weights

    cache, memory = caches(full()), place / "weights.json"

    def name(config: Any) -> bytes:
        assert identity.declined(config, cache) is None
        made = identity.Namespace(config, cache, identity.geometry(config, cache, 0))
        found = identity.weights_directories(config)
        assert isinstance(found, list)
        made.know_weights(*(hash_weights(each, memory) for each in found))
        assert made.name is not None
        return made.name

    def ngram(tokens: int) -> dict[str, Any]:
        return {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 3}

    def eagle(drafter: Path) -> dict[str, Any]:
        return {"method": "eagle", "model": str(drafter), "num_speculative_tokens": 2}

    moved = place / "moved"
    shutil.copytree(drafters[0], moved)
    names = [
        name(config),
        name(speculating(model, ngram(2))),
        name(speculating(model, ngram(3))),
        name(speculating(model, eagle(drafters[0]))),
        name(speculating(model, eagle(drafters[1]))),
    ]
    assert len(set(names)) == len(names)
    assert name(speculating(model, eagle(moved))) == names[3], "wherever the drafter lies"
    (moved / "model.safetensors").unlink()
    unknown = identity.weights_directories(speculating(model, eagle(moved)))
    assert not isinstance(unknown, list)
    assert f"no weight files in {moved}" in unknown.sentence


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


def test_strict_refuses_what_is_declined_and_to_be_without_a_pool(config: Any, place: Path) -> None:
    strict = {"socket": str(place / "nobody"), "strict": True}
    with pytest.raises(StartupError, match=r"strict .*without full attention"):
        connector(config, declined_caches()["window"], **strict)
    with pytest.raises(StartupError, match="no pool answers"):
        connector(config, caches(full()), no_pool="serve", **strict)
    assert not list(place.iterdir())


NO_POOL: dict[str, dict[str, Any]] = {
    "could not begin": {"disk": ["/nowhere/at/all:1GiB"]},
    "cannot be used": {"socket": "/nowhere/at/all/pool.sock"},
    "a socket's path at most": {"socket": "/" + "x" * 200},
    "written by others": {"socket": "/tmp/pool-that-is-not-there.sock"},
}


@pytest.mark.parametrize("why", NO_POOL)
def test_an_engine_starts_where_no_pool_can_be_had(
    config: Any, place: Path, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F5: joining and starting a pool is inside the boundary; only `strict` ends the engine."""
    settings = {"socket": str(place / "pool.sock"), "weights_id": "w", "dram": "16MiB"}
    settings |= NO_POOL[why]
    made = connector(config, caches(full()), **settings)
    assert sum(why in line for line in caplog.messages) == 1, caplog.messages
    assert made.get_kv_connector_stats().data["state"] == "no_pool"
    assert made.get_num_new_matched_tokens(NAMELESS, 0) == (0, False)
    assert made.reset_cache() is True
    assert made.boundary.failures == 0
    made.shutdown()
    with pytest.raises(StartupError, match=why):
        connector(config, caches(full()), strict=True, **settings)


def test_an_engine_that_started_without_a_pool_joins_one_later(config: Any, place: Path) -> None:
    wanted = {"disk": [f"{place / 'disk'}:1GiB"], "dram": "16MiB", "weights_id": "w"}
    made = connector(config, caches(full()), socket=str(place / "pool.sock"), **wanted)
    assert not made._scheduler.is_joined
    with running_pool(place):
        wait_until(
            lambda: made.build_connector_meta(Output) and made._scheduler.is_joined, "it to join"
        )
        made.shutdown()


def test_a_bug_at_start_is_no_pool(
    config: Any, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is raised: the engine serves as without Forebay."""
    monkeypatch.setattr("forebay.sys.processes.subprocess", None)
    made = connector(config, caches(full()), socket=str(place / "pool.sock"), weights_id="w")
    is_disabled(made, caplog, "no_pool", failures=1)


class Nameless:
    """A request that nobody has told us of."""

    request_id = "nameless"


NAMELESS = Nameless()


def test_an_unknown_setting_is_one_sentence(config: Any) -> None:
    with pytest.raises(StartupError, match=r'kv_connector_extra_config\["dran"\].*dram'):
        connector(config, caches(full()), dran="1GiB")


def test_a_wrong_value_is_one_sentence(config: Any) -> None:
    with pytest.raises(StartupError, match=r'kv_connector_extra_config\["dram"\]'):
        connector(config, caches(full()), dram="a lot")


def test_a_missing_socket_is_one_sentence(config: Any, place: Path) -> None:
    with pytest.raises(StartupError, match=r"no pool answers at .*nobody") as raised:
        connector(config, caches(full()), socket=str(place / "nobody"), no_pool="fail")
    assert "\n" not in str(raised.value)


def test_a_pool_of_another_version_is_one_sentence(config: Any, place: Path) -> None:
    """Something listens there and says what no pool of ours would."""
    path = str(place / "pool.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(20)

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(encode(Refused("this pool speaks protocol 9; update Forebay.")))

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(StartupError) as raised:
            connector(config, caches(full()), socket=path, no_pool="fail")
        thread.join()
    assert "\n" not in str(raised.value)
    assert "protocol 9" in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_pool_of_another_user_is_one_sentence(config: Any, place: Path) -> None:
    place.chmod(0o755)
    with running_pool(place, disk=False) as pool:
        Path(pool.socket).chmod(0o777)
        os.seteuid(65534)
        joining = {"socket": pool.socket, "no_pool": "fail", "weights_id": "not ours to read"}
        try:
            with pytest.raises(StartupError) as raised:
                connector(config, caches(full()), **joining)
        finally:
            os.seteuid(0)
    assert "\n" not in str(raised.value)


def test_t11_t13_names_differ_by_everything_that_shapes_bytes(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from forebay.engines.vllm import identity

    def name(cache: Any, config: Any = config, chunk_tokens: int = 0) -> bytes:
        shape = identity.geometry(config, cache, chunk_tokens)
        space = identity.Namespace(config, cache, shape)
        space.know_weights("0" * 64)
        assert space.name is not None
        return space.name

    usual = name(caches(full()))
    assert name(caches(full())) == usual, "the control"
    others = {
        "block size": name(caches(replace(full(), block_size=32))),
        "heads": name(caches(replace(full(), num_kv_heads=4))),
        "head size": name(caches(replace(full(), head_size=64))),
        "kv dtype": name(caches(replace(full(), dtype=torch.bfloat16))),
        "window": name(caches(replace(full(), sliding_window=64))),
        "chunk": name(caches(full()), chunk_tokens=32),
    }
    named = identity.Namespace(config, caches(full()), identity.geometry(config, caches(full()), 0))
    named.name_weights("0" * 64)
    assert named.name is not None
    others["a name that looks like the hash"] = named.name
    layout = caches(full())
    if hasattr(layout, "kv_cache_layout"):
        layout.kv_cache_layout = "another"
        others["layout"] = name(layout)
    for part, field, value in (
        ("cache_config", "cache_dtype", "fp8"),
        ("model_config", "quantization", "awq"),
        ("model_config", "dtype", torch.float16),
        ("model_config", "max_model_len", 77),
        ("parallel_config", "tensor_parallel_size", 2),
    ):
        changed = copy.copy(config)
        inner = copy.copy(getattr(config, part))
        object.__setattr__(inner, field, value)
        object.__setattr__(changed, part, inner)
        others[field] = name(caches(full()), changed)
    monkeypatch.setattr(identity, "vllm_version", "0.33.0")
    others["vLLM itself"] = name(caches(full()))
    assert len({usual, *others.values()}) == len(others) + 1, others


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
