"""A real SGLang server with the pool gives the text that it gives without it, whatever happens.

Text is compared in float32, where the same history gives the same answer. Servers take long to
start, so tests follow each other: each goes on with the server and the pool of the one before.
"""

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.engines.sglang.real.server import (
    HANG_S,
    PAGE,
    Answer,
    Server,
    stored_of,
    tokens_of,
)
from tests.engines.vllm.real.models import Tokens, dialogs, made_model, next_turn
from tests.pool_process import (
    PoolProcess,
    flip_records,
    is_written,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.engines import sglang as backend_place

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]
SIZE = 3  # dialogs
FIRST = 600  # tokens of their first prompt
OURS = str(Path(backend_place.__file__).parent)
WHOLE = FIRST // PAGE * PAGE  # of these, tokens in whole pages


class Stage:
    """A pool, a model, the server that is running, and what it said when it computed everything."""

    def __init__(self, place: Path, pool: PoolProcess) -> None:
        self.place, self.pool = place, pool
        self.model = made_model(place / "model", 1, heads=4, kv_heads=2, layers=3)
        self.other = made_model(place / "other", 2, heads=4, kv_heads=2, layers=3)
        self.prompts = dialogs(SIZE, FIRST)
        self.answers: list[Tokens] = []
        self.longer: list[Tokens] = []  # the dialogs' second prompts
        self.servers: list[Server] = []

    @property
    def server(self) -> Server:
        """The one that runs; the first has stored the prompts."""
        if not self.servers:
            self.begin()
        return self.servers[-1]

    def begin(self) -> list[Answer]:
        """Start the first server, and have it compute and store the prompts."""
        server, before = self.start(), self.pages()
        answers = server.ask(self.prompts)
        self.answers = tokens_of(answers)
        wait_until(lambda: self.pages() >= before + SIZE * WHOLE // PAGE, "the pages", HANG_S)
        return answers

    def start(self, ranks: int = 1) -> Server:
        """The next server."""
        log = self.place / f"server-{len(self.servers)}.log"
        self.servers.append(Server(self.model, self.pool, log, ranks=ranks))
        server = self.servers[-1].wait_until_ready()
        seeds = count(10_000)

        def shares() -> bool:
            """It looks whether the weights are known when it is asked for more than a page."""
            server.ask(dialogs(1, 2 * PAGE, next(seeds)), 1)
            return server.said("Forebay shares")

        wait_until(shares, "the hash of the weights", HANG_S)
        server.flush()  # what is still to be stored of these is not
        return server

    def ask_again(self) -> list[Answer]:
        """Have it from the server without KV of its own: it must be as at first."""
        self.server.flush()
        answers = self.server.ask(self.prompts)
        assert tokens_of(answers) == self.answers
        return answers

    def pages(self) -> int:
        """How many were stored in this life of the pool."""
        return self.pool.number("operations", tier="dram", direction="store")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with short_directory() as place, running_pool(place, "--dram", "64MiB") as pool:
        made = Stage(place, pool)
        yield made
        for server in made.servers:
            server.kill()


def test_t50_the_text_is_equal_after_the_cache_was_flushed(stage: Stage) -> None:
    answers = stage.begin()
    assert [each.cached for each in answers] == [0] * SIZE, "all of it was computed"
    assert stored_of(stage.ask_again()) == SIZE * WHOLE


def test_t50_a_dialog_goes_on_behind_what_was_stored(stage: Stage) -> None:
    server = stage.server
    stage.longer = next_turn(stage.prompts, stage.answers, 7)
    before = stage.pages()
    first = server.ask(stage.longer)
    pages = sum(len(prompt) // PAGE - WHOLE // PAGE for prompt in stage.longer)
    wait_until(lambda: stage.pages() >= before + pages, "the pages of the second turn", HANG_S)
    server.flush()
    second = server.ask(stage.longer)
    assert tokens_of(second) == tokens_of(first)
    assert stored_of(second) == sum(len(prompt) // PAGE * PAGE for prompt in stage.longer)


def test_t50_the_text_is_equal_after_the_server_was_killed(stage: Stage) -> None:
    stage.server.kill()
    stage.start()
    assert stored_of(stage.ask_again()) == SIZE * WHOLE


def test_t50_the_text_is_equal_after_both_came_back_from_nvme(stage: Stage) -> None:
    wait_until(lambda: is_written(stage.pool), "the drive", HANG_S)
    stage.server.kill()
    stage.pool.stop()
    stage.pool.start()
    stage.start()
    assert stored_of(stage.ask_again()) == SIZE * WHOLE
    loads = stage.pool.number("operations", tier="disk", direction="load", outcome="ok")
    assert loads >= SIZE * WHOLE // PAGE


def test_wrong_bytes_would_change_the_text(stage: Stage) -> None:
    """The control of all other tests; DRAM is not verified at every hit unless it is asked for."""
    server = stage.server

    def is_noticed() -> bool:
        """An idle pool looks for damage and drops what it finds; it may be sooner."""
        server.flush()
        stage.pool.spoil_slab()
        answers = server.ask(stage.prompts)
        return stored_of(answers) > 0 and tokens_of(answers) != stage.answers

    wait_until(is_noticed, "another text", HANG_S)


def test_t6_flipped_bytes_on_the_drive_are_misses(stage: Stage) -> None:
    stage.pool.stop()
    stage.pool.start()
    flip_records(stage.pool)
    assert stored_of(stage.ask_again()) < SIZE * WHOLE
    assert stage.pool.number("operations", outcome="corrupt") > 0


def test_t29_a_pool_that_is_killed_is_a_miss(stage: Stage) -> None:
    stage.pool.kill()
    assert stored_of(stage.ask_again()) == 0
    stage.pool.start()

    def is_back() -> bool:
        return stored_of(stage.ask_again()) > 0

    wait_until(is_back, "what was stored in the next pool", HANG_S)


def test_t24_a_pool_that_stalls_is_a_miss(stage: Stage) -> None:
    """It answers while the pool still stands; how long it waits is tested with a clock of ours."""
    stage.pool.signal(signal.SIGSTOP)
    assert stored_of(stage.ask_again()) == 0
    assert stage.pool.is_stopped()
    stage.pool.signal(signal.SIGCONT)

    def is_back() -> bool:
        return stored_of(stage.ask_again()) > 0

    wait_until(is_back, "the pool that goes on", HANG_S)


def test_t10_other_weights_in_memory_find_nothing(stage: Stage) -> None:
    """And nothing that they computed is found by anybody."""
    server, before = stage.server, stage.pages()
    told = server.post("/update_weights_from_disk", {"model_path": str(stage.other)})
    assert told["success"], told
    for _ in range(2):
        server.flush()
        answers = server.ask(stage.prompts)
        assert [each.cached for each in answers] == [0] * SIZE
        assert tokens_of(answers) != stage.answers
    assert stage.pages() == before
    assert server.said("weights were changed in memory")


def test_t11_each_of_two_ranks_has_pages_of_its_own(stage: Stage) -> None:
    stage.server.kill()
    server, before = stage.start(ranks=2), stage.pages()
    answers = server.ask(stage.prompts)
    assert [each.cached for each in answers] == [0] * SIZE, "a rank alone has other pages"
    stage.answers = tokens_of(answers)
    wait_until(lambda: stage.pages() >= before + 2 * SIZE * WHOLE // PAGE, "the pages", HANG_S)
    assert stored_of(stage.ask_again()) == SIZE * WHOLE


def test_nothing_was_raised_into_sglang(stage: Stage) -> None:
    """What it logs where a backend raises, or a frame of ours in any trace."""
    for server in stage.servers:
        for words in ("query failed", "transfer failed", "backup failed", "internal error", OURS):
            assert not server.said(words), server.log.read_text()[-8000:]
