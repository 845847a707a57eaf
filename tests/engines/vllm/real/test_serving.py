"""vLLM's own API server as it is run: what its page and log tell, and what ends or stops it.

The drive of the pool can be made to hang, so that a request waits for its load when a signal comes.
"""

import hashlib
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from tests.engines.vllm.real.api_server import ApiServer, cached_of
from tests.engines.vllm.real.engine import HANG_S, stored_chunks
from tests.engines.vllm.real.models import Tokens, dialogs
from tests.pool_process import (
    PatientClient,
    PoolProcess,
    exact,
    is_written,
    made,
    running_pool,
    short_directory,
    wait_until,
)

from forebay.pool.client import Receipt
from forebay.record.header import HEADER_BYTES, MAGIC, RecordHeader, unpack

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
DRAM_BYTES = 64 << 20
SALT = "a-tenant-of-great-secrecy"
CHUNK = 256  # tokens
LENGTH = 600


@contextmanager
def faulty_pool() -> Iterator[PoolProcess]:
    with short_directory() as place:
        (place / "faults").touch()
        flags = ["--dram", str(DRAM_BYTES), "--faults-file", str(place / "faults")]
        flags += ["--log-level", "debug", "--metrics-address", "127.0.0.1:0"]
        # A drive that is never full takes all that it is given.
        with running_pool(place, *flags, faulty=True, disk_bytes=1 << 30) as pool:
            yield pool


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolProcess]:
    with faulty_pool() as made:
        yield made


@contextmanager
def served(model: Path, pool: PoolProcess, log: Path, first_seed: int) -> Iterator[ApiServer]:
    """A server that shares; its log has every line that there is."""
    server, before, seed = (
        ApiServer(model, pool, log, is_loud=True),
        stored_chunks(pool),
        first_seed,
    )
    try:

        def is_shared() -> bool:
            nonlocal seed
            seed += 1
            server.ask(dialogs(1, 300, seed)[0])
            return stored_chunks(pool) > before

        wait_until(is_shared, "the engine to share", HANG_S)
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def server(model: Path, pool: PoolProcess, log: Path) -> Iterator[ApiServer]:
    with served(model, pool, log, 40_000) as made:
        yield made


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=HANG_S) as answer:
        return str(answer.read().decode())


def headers(place: Path) -> list[RecordHeader]:
    """Of every record on the drive."""
    pages = []
    for path in (place / "disk").glob("region-*"):
        data = path.read_bytes()
        starts = range(0, len(data), HEADER_BYTES)
        pages += [data[at : at + HEADER_BYTES] for at in starts if data.startswith(MAGIC, at)]
    return [found for found in map(unpack, pages) if isinstance(found, RecordHeader)]


def store(server: ApiServer, pool: PoolProcess, prompt: Tokens, **more: Any) -> None:
    """Ask until both chunks are stored: a request that ends before the pool answers stores none."""
    before = stored_chunks(pool)

    def is_stored() -> bool:
        server.empty_cache()
        server.ask(prompt, **more)
        return stored_chunks(pool) >= before + 2

    wait_until(is_stored, "the chunks", HANG_S)


def spelled(tokens: Tokens) -> list[str]:
    """Five tokens in a row, as somebody might write them."""
    run = tokens[100:105]
    return [separator.join(map(str, run)) for separator in (",", ", ", " ", "\n")]


def test_t46_nothing_private_is_on_vllms_page_nor_in_any_log(
    server: ApiServer, pool: PoolProcess, log: Path
) -> None:
    prompt = dialogs(1, LENGTH, 41)[0]
    store(server, pool, prompt, cache_salt=SALT)
    wait_until(lambda: is_written(pool), "the drive", HANG_S)
    server.empty_cache()
    assert cached_of(server.ask(prompt, cache_salt=SALT)) == 2 * CHUNK
    server.empty_cache()
    assert cached_of(server.ask(prompt, cache_salt=f"{SALT}-2")) == 0, "a miss is told too"
    page = server.metrics()
    url = pool.url()
    told = {
        "vLLM's page": page,
        "vLLM's log": log.read_text(errors="replace"),
        "the pool's page": fetch(f"{url}/metrics"),
        "the pool's figures": fetch(f"{url}/stats.json"),
        "the pool's log": pool.log.read_text(),
    }
    for line in ("forebay:loaded_total{", "forebay:misses_total{", "forebay:stored_total{"):
        assert line in page, "the control: it tells of this"
    assert "Forebay shares chunks" in told["vLLM's log"], "the control: our lines are there"
    digest = hashlib.sha256(SALT.encode()).hexdigest()
    private = [SALT, SALT.encode().hex(), digest[:12], *spelled(prompt)]
    keys = {header.name.key for header in headers(pool.place)}
    assert len(keys) >= 2, "the control: names of records were found"
    private += [key.hex()[:12] for key in keys]
    private += [header.payload_hash.hex()[:12] for header in headers(pool.place)]
    pages = sorted(pool.slab_pages())[:50]
    assert pages, "the control: KV was found"
    private += [page[:8].hex() for page in pages]
    for where, text in told.items():
        for word in private:
            assert word not in text, (where, word)


@contextmanager
def hanging(pool: PoolProcess) -> Iterator[None]:
    """The drive answers no read."""
    switch(pool, "read:hang")
    try:
        yield
    finally:
        switch(pool, "")


def switch(pool: PoolProcess, fault: str) -> None:
    count = pool.log.read_text().count("faults are on")
    (pool.place / "faults").write_text(fault)
    pool.signal(signal.SIGHUP)
    wait_until(lambda: pool.log.read_text().count("faults are on") > count, "the fault", HANG_S)


def stored_on_drive(server: ApiServer, pool: PoolProcess, seed: int) -> Tokens:
    """A prompt whose chunks are on the drive alone."""
    prompt = dialogs(1, LENGTH, seed)[0]
    store(server, pool, prompt)
    wait_until(lambda: is_written(pool), "the drive", HANG_S)
    with PatientClient(pool.socket) as operator:
        operator.resize(0, timeout_s=HANG_S)
        wait_until(lambda: not pool.number("chunks", tier="dram"), "DRAM", HANG_S)
        operator.resize(DRAM_BYTES, timeout_s=HANG_S)
    server.empty_cache()
    return prompt


@contextmanager
def waiting(server: ApiServer, pool: PoolProcess, prompt: Tokens) -> Iterator[threading.Thread]:
    """A client whose request waits for a load."""
    client = threading.Thread(target=lambda: answers.append(attempt(server, prompt)))
    answers: list[object] = []
    client.start()
    wait_until(lambda: pool.number("pinned_bytes"), "the load", HANG_S)
    yield client
    client.join(HANG_S)
    assert len(answers) == 1


def attempt(server: ApiServer, prompt: Tokens) -> object:
    try:
        return server.ask(prompt)
    except (OSError, HTTPException, AssertionError, ValueError) as error:  # it ends meanwhile
        return error


def check_others(pool: PoolProcess, label: str) -> None:
    """Another engine stores and loads a quarter of what DRAM holds."""
    chunks, chain = made(label, DRAM_BYTES // 4 // 100_000)
    with PatientClient(pool.socket) as other:
        receipt = other.store(chain, [chunk.payload for chunk in chunks])
        assert receipt == Receipt(stored=len(chunks))
        with other.load(chain) as loaded:
            assert exact(loaded, chunks)


def test_t48_t57_a_server_that_is_stopped_and_goes_on_costs_others_nothing(
    server: ApiServer, pool: PoolProcess
) -> None:
    """As a debugger or Ctrl-Z stops it, with all of its processes, while it waits for a load."""
    prompt = stored_on_drive(server, pool, 42)
    with hanging(pool), waiting(server, pool, prompt):
        os.killpg(server.pid, signal.SIGSTOP)
        try:
            check_others(pool, "beside the stopped")
        finally:
            os.killpg(server.pid, signal.SIGCONT)
        switch(pool, "")
    answer = server.ask(prompt)
    server.empty_cache()
    assert server.ask(prompt)["choices"][0]["token_ids"] == answer["choices"][0]["token_ids"]
    wait_until(lambda: not any_held(pool), "everything to be given back", HANG_S)


def any_held(pool: PoolProcess) -> bool:
    held = pool.held()
    return bool(held["pinned_bytes"] or held["leased_slots"] or held["requests"])


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.models)]
)
def test_t30_t48_a_server_that_is_told_to_end_ends_and_gives_all_back(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """While a request waits for a drive that hangs; SIGINT as Ctrl-C, to the whole group."""
    with faulty_pool() as pool, served(model, pool, tmp_path / "log", 50_000) as server:
        prompt = stored_on_drive(server, pool, 43)
        with hanging(pool), waiting(server, pool, prompt):
            server.end(number, HANG_S)
            server.kill()
        wait_until(lambda: not any_held(pool), "everything to be given back", HANG_S)
        pool.check_alive()
        check_others(pool, f"after {number.name}")
