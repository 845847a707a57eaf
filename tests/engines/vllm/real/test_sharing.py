"""Who shares with whom: the same bytes for the same model, nothing for any other.

Every pair is tried in both directions and has its positive control: that each finds its own. The
pool's drive is encrypted.
"""

import itertools
import json
import mmap
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real.engine import (
    HANG_S,
    SHIPPED_STEP_WAIT_S,
    Engine,
    cached_of,
    stored_chunks,
    tokens_of,
)
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import HAS_BFLOAT16, Tokens, dialogs
from tests.pool_process import PatientClient, PoolProcess, short_directory, wait_until

from forebay.cli.main import main
from forebay.identity.tenants import salt_hash, salt_key

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
StartEngine = Callable[..., Engine]
TENANTS = {"one": "salt of one", "two": "salt of two"}  # name → salt
TENANT_BYTES = 4 << 20  # that each has of DRAM, neither more nor less
SEARCHED_PAGES = 8  # of DRAM, that are looked for at every byte of the drive
LENGTH = 600
CHUNK = 256  # tokens
KNOWN = 512  # tokens of it that are stored
SEEDS = itertools.count(1)  # each engine has prompts of its own
SALTS = ("one", "two", "@", "/", "..", "\0", "søstre", "one ", "x" * 1_000_000)


class Sharer:
    """An engine, and the prompt that it has stored."""

    def __init__(self, engine: Engine, pool: PoolProcess) -> None:
        self.engine, self.pool = engine, pool
        self.prompt = dialogs(1, LENGTH, next(SEEDS))[0]
        engine.share(pool)

    def store(self) -> None:
        before = stored_chunks(self.pool)
        self.engine.generate([self.prompt], answer=2)
        self.engine.empty_cache()
        # A pool may hear another engine's lookup before a commit that was sent sooner.
        wait_until(lambda: stored_chunks(self.pool) >= before + KNOWN // CHUNK, "its chunks")

    def finds(self, prompt: Tokens) -> int:
        """Tokens of this prompt that it did not have to compute."""
        found = cached_of(self.engine.generate([prompt], answer=2))
        self.engine.empty_cache()
        return found


def write_tenants(place: Path) -> Path:
    """Settings of a pool with two tenants; all other salts are the default tenant's."""
    secret = b"a secret of sixteen bytes or more"
    (place / "tenants.key").write_bytes(secret)
    lines = [f'tenant_key_file = "{place / "tenants.key"}"']
    for name, salt in TENANTS.items():
        digits = salt_hash(salt, salt_key(secret)).hex()
        lines += ["[[tenant]]", f'name = "{name}"', f'salts = ["{digits}"]']
        lines += [f"dram_cap = {TENANT_BYTES}", f"dram_floor = {TENANT_BYTES}"]
    (place / "pool.toml").write_text("\n".join(lines) + "\n")
    return place / "pool.toml"


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolProcess]:
    with short_directory() as place:
        settings, keys = str(write_tenants(place)), place / "keys"
        assert main(["rotate", "--new-key", str(keys)]) == 0
        flags = ("--dram", "256MiB", "--config", settings, "--encryption", f"file:{keys}")
        pool = PoolProcess(place, *flags, disk_bytes=256 << 20).start()
        yield pool
        pool.kill()


@pytest.fixture(scope="module")
def first(model: Path, pool: PoolProcess) -> Iterator[Sharer]:
    """The engine that all others are compared with."""
    sharer = Sharer(Engine(model, pool), pool)
    sharer.store()
    yield sharer
    sharer.engine.kill()


def other_config(model: Path, place: Path) -> Path:
    """The same weights, read with another configuration."""
    shutil.copytree(model, place / "other")
    path = place / "other" / "config.json"
    config = json.loads(path.read_text())
    rope = config.setdefault("rope_parameters", {"rope_type": "default"})
    rope["rope_theta"] = 20_000.0
    path.write_text(json.dumps(config))
    return place / "other"


VARIANTS: dict[str, Callable[[Path, Path, Path], tuple[Path, dict[str, Any]]]] = {
    "t10 other weights": lambda _model, other, _place: (other, {}),
    "t10 other rope": lambda model, _other, place: (other_config(model, place), {}),
    "t11 other block size": lambda model, _other, _place: (model, {"block_size": 64}),
    "t10 other context": lambda model, _other, _place: (model, {"max_model_len": 1024}),
}
if HAS_BFLOAT16:  # else test_config.py alone says so
    VARIANTS["t10 other dtype"] = lambda model, _other, _place: (model, {"dtype": "bfloat16"})


# One mechanism, shown by two; the others are in the long matrix.
FEW = ("t10 other weights", "t10 other rope")


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in FEW else pytest.mark.models) for name in VARIANTS
    ]
)
def variant(
    request: pytest.FixtureRequest, model: Path, other_weights: Path, tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """A model and how it is served, like the first one but for one thing."""
    return VARIANTS[request.param](model, other_weights, tmp_path)


def test_t10_t11_another_engine_shares_nothing(
    variant: tuple[Path, dict[str, Any]],
    first: Sharer,
    pool: PoolProcess,
    start_engine: StartEngine,
) -> None:
    path, options = variant
    other = Sharer(start_engine(path, pool, **options), pool)
    assert other.finds(first.prompt) == 0
    wait_until(lambda: last_decision(pool) == "other_model", "why it found nothing")
    other.store()
    assert other.finds(other.prompt) >= KNOWN, "the control: it finds its own"
    assert first.finds(other.prompt) == 0
    assert first.finds(first.prompt) == KNOWN, "the control: the first finds its own"


def test_t35_t36_salts_share_nothing(first: Sharer) -> None:
    engine = first.engine
    prompt = dialogs(1, LENGTH, next(SEEDS))[0]
    plain = tokens_of(engine.generate([prompt]))
    engine.empty_cache()
    for salt in SALTS:
        answers = engine.generate([prompt], salt=salt)
        assert cached_of(answers) == 0, "nobody else's"
        assert tokens_of(answers) == plain
        engine.empty_cache()
    for salt in SALTS:
        answers = engine.generate([prompt], answer=2, salt=salt)
        assert cached_of(answers) == KNOWN, "the control: its own"
        engine.empty_cache()
    assert first.finds(prompt) == KNOWN, "and without a salt"
    has_run("salt")


def test_t35_t63_two_salts_are_two_tenants_within_quotas_and_forgotten_by_name(
    first: Sharer, pool: PoolProcess
) -> None:
    engine = first.engine
    prompts = dialogs(6, LENGTH, next(SEEDS))
    plain = tokens_of(engine.generate(prompts))
    engine.empty_cache()

    def ask(name: str, prompts: list[Tokens]) -> int:
        """Tokens that were not computed; the answers are what they always are."""
        answers = engine.generate(prompts, salt=TENANTS[name])
        assert tokens_of(answers) == plain[: len(prompts)]
        engine.empty_cache()
        rows = {row["tenant"]: row["dram"]["used_bytes"] for row in pool.stats()["tenants"]}
        assert all(rows[each] <= TENANT_BYTES for each in TENANTS)
        assert rows[name] > 0
        return cached_of(answers)

    for name in TENANTS:
        assert ask(name, prompts[:1]) == 0, "nobody else's"
        assert ask(name, prompts[:1]) == KNOWN, "the control: its own"
    for name in TENANTS:
        ask(name, prompts)
    assert main(["forget", "one", "--yes", "--socket", pool.socket]) == 0
    assert ask("two", prompts[:1]) == KNOWN, "the other keeps what it has"
    assert ask("one", prompts[:1]) == 0, "forgotten by name"
    assert ask("one", prompts[:1]) == KNOWN, "and goes on"


def test_why_names_each_request_of_a_real_engine(first: Sharer, pool: PoolProcess) -> None:
    engine = first.engine
    prompt = dialogs(1, LENGTH, next(SEEDS))[0]
    asked: list[tuple[Tokens, dict[str, str], str]] = [
        (prompt, {}, "unknown"),
        (prompt, {}, "not_worth"),
        (prompt, {"salt": "a tenant"}, "other_salt"),
        (prompt, {}, "loaded"),
        (prompt[:100], {}, "short"),
    ]
    for tokens, more, decision in asked:
        engine.generate([tokens], answer=2, **more)
        engine.do("settle")
        wait_until(lambda: last_decision(pool) == decision, decision)  # noqa: B023 - now
        if more:
            engine.empty_cache()


def told_of(pool: PoolProcess, *sharers: Sharer) -> str:
    """What they and their pool have counted, where one does not find what another stored."""
    states = [sharer.engine.do("state") for sharer in sharers]
    return json.dumps([last_decision(pool), *states, pool.stats()])


def last_decision(pool: PoolProcess) -> str:
    """What `forebay why` says of the last request that the pool has heard of."""
    with PatientClient(pool.socket) as client:
        found = client.requests("", 1, 0, HANG_S)
    assert isinstance(found, dict), found
    requests: Any = found["requests"]
    return str(requests[-1]["decision"])


def test_a_second_engine_shares_until_a_reset_leaves_everything_behind(
    model: Path, pool: PoolProcess, start_engine: StartEngine, first: Sharer
) -> None:
    """After new weights were pushed into the model, nothing that was stored before may be used."""
    second = Sharer(start_engine(model, pool), pool)
    engine = second.engine
    assert second.finds(first.prompt) == KNOWN
    second.store()
    assert first.finds(second.prompt) == KNOWN, told_of(pool, first, second)
    before = tokens_of(engine.generate([first.prompt]))
    assert engine.do("scale_weights", factor=1.05)
    assert engine.do("reset")
    after = engine.generate([first.prompt])
    assert cached_of(after) == 0
    assert tokens_of(after) != before, "the control: the weights are new"
    engine.empty_cache()
    again = engine.generate([first.prompt])
    assert cached_of(again) == KNOWN, "it shares with itself from here on"
    assert tokens_of(again) == tokens_of(after)
    assert first.finds(first.prompt) == KNOWN, "and others keep what they had"
    has_run("reset")


def test_keep_on_reset_keeps(
    model: Path, pool: PoolProcess, start_engine: StartEngine, first: Sharer
) -> None:
    second = Sharer(start_engine(model, pool, settings={"keep_on_reset": True}), pool)
    assert second.engine.do("reset")
    assert second.finds(first.prompt) == KNOWN


def test_t45_what_comes_back_from_an_encrypted_drive_is_not_to_be_seen_there(
    first: Sharer, pool: PoolProcess
) -> None:
    engine = first.engine
    prompt = dialogs(1, LENGTH, next(SEEDS))[0]
    plain = tokens_of(engine.generate([prompt]))
    engine.empty_cache()
    pages = pool.slab_pages()
    pool.stop()
    drive = b"".join(path.read_bytes() for path in (pool.place / "disk").rglob("region-*"))
    assert len(drive.strip(b"\0")) > KNOWN
    for at in range(0, len(drive), mmap.PAGESIZE):
        assert drive[at : at + mmap.PAGESIZE] not in pages
    for page in sorted(pages)[:SEARCHED_PAGES]:
        assert page[64:128] not in drive, "nor anywhere else in it"
    pool.start()
    engine.rejoin()
    engine.empty_cache()
    before = pool.slab_pages()
    answers = engine.generate([prompt])
    assert cached_of(answers) == KNOWN
    assert tokens_of(answers) == plain
    assert pool.number("operations", tier="disk", direction="load", outcome="ok") >= KNOWN // CHUNK
    assert (pool.slab_pages() - before) & pages, "the control: it was KV that was looked for"


def test_t29_a_pool_that_hangs_is_left_alone(
    model: Path,
    start_engine: StartEngine,
    start_pool: Callable[..., PoolProcess],
    without_pool: Engine,
) -> None:
    pool = start_pool()
    deadlines = {"lookup_deadline_ms": 20, "load_deadline_ms": 100}
    engine = start_engine(model, pool, settings=deadlines, step_wait_s=SHIPPED_STEP_WAIT_S)
    engine.share(pool)
    prompts = dialogs(12, 300, next(SEEDS))
    pool.signal(signal.SIGSTOP)
    for prompt in prompts:
        answers = engine.generate([prompt], answer=4)
        assert tokens_of(answers) == tokens_of(without_pool.generate([prompt], answer=4))
    counts = engine.do("state")["counts"]
    assert counts["pool.paused"] >= 1
    assert counts["misses.paused"] >= 1, "later requests are not even looked up"
    pool.signal(signal.SIGCONT)
    before, until = stored_by(engine), time.monotonic() + HANG_S
    while stored_by(engine) == before:
        assert time.monotonic() < until, "it is never tried again"
        engine.generate(dialogs(1, 300, next(SEEDS)), answer=4)
        time.sleep(0.5)


def stored_by(engine: Engine) -> int:
    return int(engine.do("state")["counts"].get("stored.chunks", 0))
