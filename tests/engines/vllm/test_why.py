"""`forebay why` names what was planted: vLLM's scheduler, our connector, a real pool process."""

import copy
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.engines.vllm.hashed_model import VOCABULARY, HashedModel, spec_of
from tests.engines.vllm.real.forked import VARIABLES
from tests.pool_process import (
    PatientClient,
    PoolProcess,
    made,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.cli.main import main
from forebay.engines.geometry import FULL, Reach, ReachKind

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800), pytest.mark.usefixtures("patient")]
CHUNK = 64  # tokens
LENGTH = 5 * CHUNK
HANG_MS = 300_000
SETTINGS = {
    "chunk_tokens": CHUNK,
    "weights_id": "hashes",
    "min_tokens": 2 * CHUNK,
    "keep_on_reset": True,
    "lookup_deadline_ms": HANG_MS,
    "load_deadline_ms": HANG_MS,
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for answers and slots, however busy the machine is."""
    from forebay.engines.vllm import scheduler

    monkeypatch.setattr(scheduler, "_STEP_WAIT_S", 60.0)


@pytest.fixture(scope="module")
def config(model: Path) -> Any:
    os.environ.update(VARIABLES)
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(model),
        served_model_name="planted",
        skip_tokenizer_init=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 20,
        max_num_batched_tokens=512,
        max_num_seqs=4,
        kv_transfer_config={
            "kv_connector": "ForebayConnector",
            "kv_connector_module_path": "forebay.engines.vllm.connector",
            "kv_role": "kv_both",
        },
    ).create_engine_config()


class Planted:
    """A pool, engines on it, and what `forebay why` prints."""

    def __init__(self, config: Any, pool: PoolProcess, capsys: pytest.CaptureFixture[str]) -> None:
        self.config, self.pool, self.capsys = config, pool, capsys
        self.draw = random.Random(7)
        self.engines: list[HashedModel] = []
        self.numbers = 0  # of requests that this pool has heard of

    def engine(self, **more: Any) -> HashedModel:
        specs = more.pop("specs", None) or [spec_of(FULL, 16)]
        told = {**SETTINGS, "socket": self.pool.socket, **more}
        self.engines.append(HashedModel(self.config, specs, 160, **told))
        return self.engines[-1]

    def prompt(self, length: int = LENGTH + 8) -> list[int]:
        return [self.draw.randrange(1, VOCABULARY) for _ in range(length)]

    def why(self, *flags: str) -> str:
        """What the command prints."""
        printed: list[str] = []

        def is_answered() -> bool:  # a busy machine may let a command give up
            self.capsys.readouterr()
            status = main(["why", *flags, "--socket", self.pool.socket])
            printed[:] = self.capsys.readouterr()
            return status == 0

        wait_until(is_answered, "an answer")
        return printed[0]

    def newest(self, engine: HashedModel, prompt: list[int], **more: Any) -> dict[str, Any]:
        """What is said of a prompt's request, once the pool has heard of it."""
        engine.generate([prompt], **more)
        told: list[dict[str, Any]] = []

        def is_told() -> bool:
            engine.step()
            found = json.loads(self.why("--last", "1", "--json"))
            told[:] = found["requests"]
            return int(found["newest"]) > self.numbers

        wait_until(is_told, "the engine to tell")
        self.numbers += 1
        said = told[0]
        assert said["number"] == self.numbers, "a request is told of once"
        tokens = said["engine_tokens"] + sum(said["loaded_tokens"].values())
        assert tokens + said["computed_tokens"] == said["prompt_tokens"] == len(prompt)
        text = " ".join(self.why(said["request"]).split())
        assert said["decision"] in text
        assert said["what"] in text
        assert said["advice"] in text
        return said

    def stored(self, engine: HashedModel, **more: Any) -> list[int]:
        """A prompt that the pool has, and the engine has not."""
        prompt = self.prompt()
        said = self.newest(engine, prompt, **more)
        assert said["decision"] == "unknown", said
        engine.empty_cache()
        return prompt

    def decision(self, engine: HashedModel, prompt: list[int], **more: Any) -> str:
        return str(self.newest(engine, prompt, **more)["decision"])

    def rejoin(self, engine: HashedModel) -> None:
        def is_joined() -> bool:
            engine.step()
            return bool(engine.side.is_joined)

        wait_until(lambda: not is_joined(), "the old pool to be missed")
        self.pool.start()
        self.numbers = 0
        wait_until(is_joined, "the new pool")


@pytest.fixture
def near(config: Any, capsys: pytest.CaptureFixture[str]) -> Iterator[Planted]:
    """On a pool of DRAM alone."""
    with short_directory() as place, running_pool(place, disk=False) as pool:
        planted = Planted(config, pool, capsys)
        yield planted
        for engine in planted.engines:
            engine.close()


def test_why_names_what_is_not_shared(near: Planted) -> None:
    assert "no request yet" in near.why()
    engine = near.engine()
    prompt = near.stored(engine)
    said = near.newest(engine, prompt)
    assert (said["decision"], said["loaded_tokens"]) == ("loaded", {"dram": LENGTH})
    assert said["found_tokens"] == {"dram": LENGTH}
    assert (said["model"], said["prefix_caching"]) == ("planted", True)
    assert near.decision(engine, prompt) == "not_worth", "the engine has it itself"
    engine.empty_cache()
    assert near.decision(engine, prompt, salt="another") == "other_salt"
    engine.empty_cache()
    assert near.decision(engine, prompt, salt="another") == "loaded", "the control"
    assert near.decision(engine, near.prompt(2 * CHUNK - 1)) == "short"
    other = near.engine(weights_id="other weights")
    assert near.decision(other, near.prompt()) == "unknown", "it has chunks of its own"
    assert near.decision(other, prompt) == "other_model"


def test_why_names_prefix_caching_that_is_off(near: Planted) -> None:
    engine = near.engine(prefix_caching=False)
    prompt = near.stored(engine)
    for _ in range(2):
        said = near.newest(engine, prompt)
        assert (said["decision"], said["engine_tokens"]) == ("loaded", 0), "nothing is its own"
        assert "prefix caching is off" in " ".join(near.why(said["request"]).split())


def test_why_names_an_engine_that_is_declined_for_want_of_prefix_caching(near: Planted) -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    config = copy.deepcopy(near.config)
    config.kv_transfer_config.kv_connector_extra_config = {"socket": near.pool.socket}
    config.cache_config.enable_prefix_caching = False
    state = replace(spec_of(Reach(ReachKind.STATE), 32), mamba_cache_mode="none")
    groups = [KVCacheGroupSpec(["a"], spec_of(FULL, 32)), KVCacheGroupSpec(["b"], state)]
    cache = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=groups)
    connector = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, cache)
    step = SchedulerOutput.make_empty()
    new = SimpleNamespace(req_id="r1", prompt_token_ids=near.prompt(), num_computed_tokens=0)
    step.scheduled_new_reqs = [new]
    connector.build_connector_meta(step)
    said: list[dict[str, Any]] = []

    def is_told() -> bool:
        connector.build_connector_meta(SchedulerOutput.make_empty())
        found = json.loads(near.why("--json"))
        said[:] = found["requests"]
        return bool(said)

    wait_until(is_told, "the engine to tell")
    assert said[0]["decision"] == "declined"
    assert "with prefix caching" in said[0]["detail"]
    engine = near.pool.stats()["engines"][0]
    assert (engine["sharing"], engine["model"]) == ("declined", "planted")
    assert not connector.boundary.failures
    connector.shutdown()


def test_why_names_what_was_evicted_and_cleared(near: Planted) -> None:
    engine = near.engine()
    prompt = near.stored(engine)
    with PatientClient(near.pool.socket) as client:
        for number in range(100):
            if not chunks_of(near, engine):
                break
            chunks, chain = made(f"flood {number}", 256, 1000)
            client.store(chain, [chunk.payload for chunk in chunks], timeout_s=60)
    assert near.decision(engine, prompt) == "evicted"
    engine.empty_cache()
    assert near.decision(engine, prompt) == "loaded", "it was stored again"
    engine.empty_cache()
    with PatientClient(near.pool.socket) as client:
        assert client.clear(None, 60)
    assert near.decision(engine, prompt) == "cleared"


def chunks_of(planted: Planted, engine: HashedModel) -> int:
    """In DRAM, of an engine's namespace."""
    name = engine.side.root.namespace.hex()
    rows = planted.pool.stats()["namespaces"]
    return sum(row["chunks"]["dram"] for row in rows if name.startswith(row["namespace"]))


def test_why_names_a_pool_that_was_gone(near: Planted) -> None:
    engine = near.engine()
    prompt = near.stored(engine)
    near.pool.kill()
    engine.generate([prompt])
    engine.generate([prompt])
    assert main(["why", "--socket", near.pool.socket]) == 2
    assert "start one with" in near.capsys.readouterr().err
    near.rejoin(engine)

    def told() -> list[dict[str, Any]]:
        engine.step()
        return list(json.loads(near.why("--json"))["requests"])

    wait_until(lambda: len(told()) >= 2, "the engine to tell the next pool")
    assert [each["decision"] for each in told()] == ["no_pool", "no_pool"]
    assert len(near.why().splitlines()) == 5, "a line each, a head, and where to read more"


@pytest.fixture
def far(config: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Planted]:
    """On a pool whose disk can be made to fail."""
    faults = tmp_path / "faults"
    faults.write_text("")
    with (
        short_directory() as place,
        running_pool(place, "--faults-file", str(faults), faulty=True) as pool,
    ):
        planted = Planted(config, pool, capsys)
        yield planted
        faults.write_text("")
        pool.signal(signal.SIGHUP)
        for engine in planted.engines:
            engine.close()


def on_disk(far: Planted, engine: HashedModel, count: int) -> list[list[int]]:
    """Prompts that lie on the disk and nowhere else."""
    prompts = [far.stored(engine) for _ in range(count)]
    far.pool.stop()  # writes what it holds
    far.rejoin(engine)
    assert tier_of(far, "disk")["chunks"] == count * LENGTH // CHUNK
    return prompts


def plant(far: Planted, rule: str) -> None:
    """Let the disk fail from now on."""
    faults = Path(far.pool.command[far.pool.command.index("--faults-file") + 1])
    faults.write_text(rule)
    before = far.pool.log.read_text()
    far.pool.signal(signal.SIGHUP)
    wait_until(lambda: far.pool.log.read_text() != before, "the faults to be taken")


def test_why_names_what_the_disk_does(far: Planted) -> None:
    engine = far.engine()
    near, slow, late, bad, *others, last = on_disk(far, engine, 7)
    said = far.newest(engine, near)
    assert (said["decision"], said["loaded_tokens"]) == ("loaded", {"disk": LENGTH})
    plant(far, "read:latency=8s")  # less than what switches a drive off
    estimate = engine.side._lookups.estimate  # as if a fast GPU and a slow drive had been seen
    estimate.tokens_a_s, estimate._read_bytes_a_s, estimate._read_at = 1e9, 1.0, time.monotonic()
    assert far.decision(engine, slow) == "computing_is_faster"
    hasty = far.engine(load_deadline_ms=1, always_load=True)
    assert far.decision(hasty, late) == "deadline"
    plant(far, "read:flip=64")
    wait_until(lambda: is_idle(far), "the slow reads to end")
    patient = far.engine(always_load=True)
    assert far.decision(patient, bad) == "corrupt"
    patient.empty_cache()
    plant(far, "read+write:errno=EIO")
    for prompt in others:
        assert far.decision(patient, prompt) in {"io_error", "tier_off"}
    wait_until(lambda: not is_on(far), "the drive to be switched off")
    assert far.decision(patient, last) == "tier_off"


def tier_of(far: Planted, name: str) -> Any:
    return next(tier for tier in far.pool.stats()["tiers"] if tier["name"] == name)


def is_on(far: Planted) -> bool:
    return bool(tier_of(far, "disk")["volumes"][0]["is_on"])


def is_idle(far: Planted) -> bool:
    """Whether the drive is on and reads nothing."""
    depth = far.pool.stats()["metrics"]["queue_depth"]["values"]
    way = {"tier": "disk", "direction": "load"}
    return is_on(far) and [count for labels, count in depth if labels == way] == [0]


def test_why_says_that_a_store_is_slower_than_the_gpu(
    config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with short_directory() as place:
        (place / "shared").mkdir(mode=0o700)
        flags = ("--remote", f"file://{place / 'shared'}?cap=64MiB&send=all")
        with running_pool(place, *flags, disk=False) as pool:
            first = Planted(config, pool, capsys)
            engine = first.engine()
            prompts = [first.stored(engine) for _ in range(6)]
            chunks = len(prompts) * LENGTH // CHUNK
            wait_until(lambda: tier_of(first, "remote")["chunks"] == chunks, "all to be sent")
            engine.close()
        with running_pool(place, *flags, disk=False) as pool:
            second = Planted(config, pool, capsys)
            engine = second.engine()
            said = second.newest(engine, prompts[0])
            assert (said["decision"], said["loaded_tokens"]) == ("loaded", {"remote": LENGTH})
            engine.side._lookups.estimate.tokens_a_s = 1e15  # as if so fast a GPU had been seen
            # A store that was read from long ago is tried again: any machine does one in a minute.
            decisions = [second.decision(engine, prompt) for prompt in prompts[1:]]
            assert "store_is_slower" in decisions, decisions
            engine.close()
