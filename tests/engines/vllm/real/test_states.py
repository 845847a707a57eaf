"""Whatever state a request is in when something happens, answers and books stay right.

Engine core, scheduler and worker run in one process here, so that single steps can be counted and
the pool killed between two of them. The disk of the pool is slow, so that loads stay in flight.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real.engine import (
    ANSWER,
    HANG_S,
    Answer,
    Engine,
    RecordedPages,
    cached_of,
    tokens_of,
)
from tests.engines.vllm.real.kinds import has_run
from tests.engines.vllm.real.models import Tokens, dialogs, next_turn
from tests.pool_process import PoolProcess, short_directory, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
CHUNK = 256  # tokens, two blocks of this model
SLOW = "read:latency=100ms"
KILL_POINTS = (
    "asked",
    "promised",
    "allocated",
    "load told",
    "before load",
    "after load",
    "load reported",
    "offered",
    "store told",
    "before store",
    "store reported",
)


class Subject:
    """One engine on one pool, and what vLLM alone answers."""

    def __init__(
        self, engine: Engine, pool: PoolProcess, without_pool: Engine, pages: RecordedPages
    ) -> None:
        self.engine, self.pool, self.pages = engine, pool, pages
        self._without_pool = without_pool
        self._known: dict[tuple[int, ...], Tokens] = {}  # what vLLM alone has answered
        self._seeds = 100

    def fresh(self, count: int, length: int = 600) -> list[Tokens]:
        """Prompts that nobody has seen."""
        self._seeds += 1
        return dialogs(count, length, seed=self._seeds)

    def stored(self, count: int, length: int = 600) -> list[Tokens]:
        """Prompts whose first chunks are in the pool, and not in the engine."""
        first = self.fresh(count, length)
        prompts = next_turn(first, tokens_of(self.engine.generate(first)), 0)
        self.engine.empty_cache()
        return prompts

    def on_disk(self, count: int) -> list[Tokens]:
        """Likewise, and not in the pool's DRAM: they are read slowly."""
        prompts = self.stored(count)
        self.pool.stop()
        self.pool.start()
        self.engine.rejoin()
        return prompts

    def expected(self, prompts: list[Tokens], answer: int = ANSWER) -> list[Tokens]:
        """What vLLM alone answers."""
        new = [tokens for tokens in prompts if (answer, *tokens) not in self._known]
        for tokens, told in zip(new, self._without_pool.generate(new, answer), strict=True):
            self._known[answer, *tokens] = told.tokens
        return [self._known[answer, *tokens] for tokens in prompts]

    def generate(self, prompts: list[Tokens], answer: int = ANSWER, **each: Any) -> list[Answer]:
        """Answers, which must be those of vLLM alone."""
        answers = self.engine.generate(prompts, answer, **each)
        assert tokens_of(answers) == self.expected(prompts, answer)
        return answers

    def first_step_without_pool(self, prompt: Tokens) -> int:
        return self._without_pool.generate([prompt], answer=2)[0].first_step

    @contextmanager
    def drive(self, fault: str) -> Iterator[None]:
        """The pool's drive does otherwise meanwhile."""
        try:
            self._switch(fault)
            yield
        finally:
            self._switch(SLOW)

    def _switch(self, fault: str) -> None:
        told = self.pool.log.read_text().count("faults are on")
        (self.pool.place / "faults").write_text(fault)
        self.pool.signal(signal.SIGHUP)
        wait_until(lambda: self.pool.log.read_text().count("faults are on") > told, fault, HANG_S)

    def check_books(self) -> None:
        """Nothing is in flight, on either side; no exception was caught."""
        assert self.engine.do("settle")
        state = self.engine.do("state")
        assert (state["tracked"], state["asking"], state["copying"]) == (0, 0, 0), state
        assert state["failures"] == 0, state
        wait_until(self._pool_holds_nothing, "the pool to hold nothing", HANG_S)

    def _pool_holds_nothing(self) -> bool:
        held = self.pool.held()
        return not (held["pinned_chunks"] or held["leased_slots"] or held["requests"])

    def count(self, name: str) -> int:
        return int(self.engine.do("state")["counts"].get(name, 0))


@pytest.fixture(scope="module")
def subject(
    model: Path, without_pool: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Subject]:
    pages = RecordedPages(tmp_path_factory.mktemp("recorded") / "pages")
    with short_directory() as place:
        # A disk that is never full: one that is lets in only what is likely to return.
        (place / "faults").write_text(SLOW)
        faults = ("--faults-file", str(place / "faults"))
        pool = PoolProcess(
            place, "--dram", "32MiB", *faults, faulty=True, disk_bytes=1 << 30
        ).start()
        engine = Engine(model, pool, recorded=pages.file, max_num_batched_tokens=CHUNK)
        engine.share(pool)
        yield Subject(engine, pool, without_pool, pages)
        engine.kill()
        pool.kill()


@pytest.fixture(autouse=True)
def books_and_pages_are_right(subject: Subject) -> Iterator[None]:
    yield
    subject.check_books()
    subject.pages.check()
    assert subject.pages.wrong == 0


def test_a_prompt_is_computed_in_parts_and_comes_back_whole(subject: Subject) -> None:
    prompts = subject.stored(3, 900)
    assert cached_of(subject.generate(prompts)) >= 3 * 3 * CHUNK


def test_a_hit_in_the_middle_of_a_chunk(subject: Subject) -> None:
    prompt = subject.stored(1, 700)[0]
    half = prompt[: CHUNK + CHUNK // 2]
    subject.generate([half + subject.fresh(1, 20)[0]])  # the engine has one and a half chunks now
    loads = subject.count("loaded.tokens")
    assert subject.generate([prompt])[0].cached >= 2 * CHUNK
    assert subject.count("loaded.tokens") - loads == CHUNK // 2


def test_requests_that_share_a_prefix_in_flight(subject: Subject) -> None:
    shared = subject.on_disk(1)[0][: 2 * CHUNK]
    loads = subject.count("loads")
    answers = subject.generate([shared + tail for tail in subject.fresh(4, 40)])
    assert cached_of(answers) >= 4 * 2 * CHUNK
    assert subject.count("loads") - loads == 1, "one loads, the others find it in the engine"


def test_generated_tokens_are_stored_too(subject: Subject) -> None:
    first = subject.fresh(1, CHUNK - 10)
    prompts = next_turn(first, tokens_of(subject.generate(first)), 0)
    subject.engine.empty_cache()
    assert subject.generate(prompts)[0].cached == CHUNK


def test_t30_preemption(subject: Subject) -> None:
    """Four requests that together outgrow the KV cache; the last is preempted and comes back."""
    before = subject.engine.do("preemptions")
    prompts = subject.stored(4, 780)  # 874 tokens when they return: 7 of 31 blocks each
    subject.generate(prompts, answer=60)
    assert subject.engine.do("preemptions") > before
    has_run("scheduling")


def test_t30_aborts_in_every_state(subject: Subject) -> None:
    after_steps = (0, 1, 2, 3, 5, 8, 13, 30, 60)
    prompts = subject.on_disk(2 * len(after_steps))
    for steps, given_up, kept in zip(after_steps, prompts[::2], prompts[1::2], strict=True):
        asked: list[dict[str, Any]] = [{"tokens": given_up, "abort": steps}, {"tokens": kept}]
        answers = subject.engine.ask(asked)
        assert [answers[1].tokens] == subject.expected([kept])
        subject.check_books()
    subject.generate(prompts[::2])


@pytest.mark.parametrize("fault", ["read:hang", "*:hang"])
def test_t24_steps_go_on_beside_a_drive_that_hangs(subject: Subject, fault: str) -> None:
    """No step waits for the drive: a prompt that does not need it loses none to one that does."""
    (stored,) = subject.on_disk(1)
    (beside,) = subject.fresh(1)
    with subject.drive(fault):
        asked: list[dict[str, Any]] = [{"tokens": stored, "last": True}, {"tokens": beside}]
        waited, answer = subject.engine.ask(asked)
    assert waited.tokens == [], "it has waited for the drive all the time"
    assert [answer.tokens] == subject.expected([beside])
    assert answer.last_step - answer.first_step == ANSWER - 1, "a token with every step"
    assert subject.generate([stored])[0].cached >= 2 * CHUNK, "the drive is used again"


def test_t48_signals_cut_no_store_and_no_load_short(subject: Subject) -> None:
    """The application has a timer whose signal ends every system call that waits."""
    prompts, more = subject.on_disk(2), subject.fresh(2)
    before = subject.engine.do("interrupt", every_s=0.002)
    assert cached_of(subject.generate(prompts)) >= 2 * 2 * CHUNK
    subject.generate(more)
    subject.engine.empty_cache()
    assert cached_of(subject.generate(more)) >= 2 * 2 * CHUNK
    assert subject.engine.do("interrupt", every_s=0) > before + 10, "the control: there were some"


def test_t48_signals_are_handled_as_without_a_pool(subject: Subject, without_pool: Engine) -> None:
    assert subject.engine.do("handled") == without_pool.do("handled")


def test_a_pure_miss_loses_no_step(subject: Subject) -> None:
    """But for those that a busy machine cost, which are counted."""
    for prompt in subject.fresh(3):
        again = subject.count("asked_again.unanswered")
        first_step = subject.engine.generate([prompt])[0].first_step
        again = subject.count("asked_again.unanswered") - again
        assert first_step - again == subject.first_step_without_pool(prompt)


@pytest.mark.models  # vLLM compiles for a minute what it needs for this
def test_a_prompt_that_skips_the_cache_skips_the_pool(subject: Subject) -> None:
    prompts = subject.stored(1, 300)
    assert cached_of(subject.generate(prompts, params={"prompt_logprobs": 1})) == 0
    assert cached_of(subject.generate(prompts)) >= CHUNK, "the control: it is in the pool"


def test_vllms_own_metrics_say_what_happened(subject: Subject) -> None:
    subject.generate(subject.stored(2))
    subject.engine.generate(subject.fresh(1, 20), answer=2)  # what was counted goes with a step
    lines = subject.engine.do("metrics")
    counts = subject.engine.do("state")["counts"]

    def figure(name: str, label: str = "") -> float:
        found = [line for line in lines if line.startswith(name) and label in line]
        assert len(found) == 1, (name, label, lines)
        return float(found[0].rpartition(" ")[2])

    assert figure("forebay:loads_total") == counts["loads"]
    assert figure("forebay:loaded_total", 'unit="tokens"') == counts["loaded.tokens"]
    assert figure("forebay:loaded_total", 'unit="bytes"') > 0
    assert figure("forebay:misses_total", 'reason="unknown"') == counts["misses.unknown"]
    assert figure("forebay:hook_seconds_count", 'hook="build_connector_meta"') > 0


@pytest.fixture(scope="module")
def on_disk(subject: Subject) -> list[Tokens]:
    """Prompts that no test before has brought back into the pool's DRAM."""
    return subject.on_disk(3 + len(KILL_POINTS))


@pytest.mark.parametrize("point", KILL_POINTS)
def test_the_pool_is_killed(subject: Subject, on_disk: list[Tokens], point: str) -> None:
    """A dead pool is a miss, and a new one is used; its slab is the only one that is mapped."""
    subject.engine.empty_cache()
    subject.engine.do("kill_at", point=point, pid=subject.pool.pid)
    subject.generate([*on_disk[:3], *subject.fresh(1)])
    assert subject.engine.do("has_killed"), "the point was never passed"
    assert subject.pool.process is not None
    subject.pool.process.wait(HANG_S)
    subject.pool.start()
    subject.engine.rejoin()
    own = on_disk[3 + KILL_POINTS.index(point)]
    assert subject.generate([own])[0].cached == 2 * CHUNK
    assert resident_bytes(subject.engine.pid, "forebay-slab") <= subject.pool.slab_bytes() * 1.1


def resident_bytes(pid: int, name: str) -> int:
    """Memory of a mapping that a process holds."""
    total, is_it = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_it = name in line
        elif is_it and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
