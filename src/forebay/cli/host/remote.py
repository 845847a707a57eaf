"""`forebay remote`: tries the stores that hosts share, from this machine."""

import argparse
import json
import secrets
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from forebay.cli import flags
from forebay.cli.parser import Commands
from forebay.cli.plan.inputs import read_model
from forebay.cli.plan.tables import pays_from
from forebay.errors import SettingsError, StartupError
from forebay.plan.breakeven import KvSource, SourceBreakeven, breakeven
from forebay.quantity import format_size
from forebay.record.header import KEY_BYTES, ROOT, RecordName
from forebay.sys import processes
from forebay.sys.shared import SharedMemory
from forebay.tiers.contract import Hit, LoadOutcome, Stored, StoreOutcome
from forebay.tiers.remote.options import RemoteOptions
from forebay.tiers.remote.tier import RemoteTier
from forebay.urls import parse_url

_RECORD_BYTES: Final = 4 << 20
_RECORDS: Final = 16
_TOKENS: Final = 8192  # of the prefix whose load is compared with computing it
_WAIT_S: Final = 120.0  # for all records to be written, or read
_OPTIONS: Final = RemoteOptions(pack_age_s=0.5, refresh_s=3600.0, open_s=30.0)
_CAP_BYTES_MIN: Final = 80 << 20  # for all records, their packs and the index
_CLOSE_S: Final = 10.0
_EPILOG = """\
examples:
  forebay remote check 'file:///mnt/shared/forebay?cap=1TiB'
  forebay remote check 'valkey://cache.example:6379?cap=64GiB' --json
  forebay remote check 's3://bucket/forebay?cap=1TiB' --model Qwen3-8B --prefill-tps 30000

Writes 64 MiB as a pool would, reads it back, verifies every byte, and deletes it. A pool may be
using the store meanwhile. With --model and the speed at which your GPUs compute prompts, says from
how many tokens on a hit would pay (forebay plan remote goes further).
Exit status: 0 the store can be used, 1 it lost or refused something, 2 it could not be reached.
"""


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of trying a store."""

    store: str
    stored: int  # records that the store accepted
    loaded: int  # how many of these came back exact
    deleted: int  # how many of these are gone after deletion
    write_mb_per_s: float
    read_mb_per_s: float
    first_ms: float  # median time of one load alone

    @property
    def is_sound(self) -> bool:
        """Whether every record was stored, loaded and deleted."""
        return self.stored == self.loaded == self.deleted == _RECORDS


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "remote",
        description="Stores that pools of several hosts share (docs/remote.md).",
        epilog=_EPILOG,
    )
    parser.add_argument("action", choices=["check"], help="write, read, verify, measure, delete")
    parser.add_argument("url", metavar="URL", help="the store, as the setting remote has it")
    parser.add_argument(
        "--model", metavar="MODEL", help="a model directory, a config.json, or a name of plan's"
    )
    parser.add_argument(
        "--prefill-tps", type=flags.RATE, metavar="P", help="prompt tokens/s of your GPUs, measured"
    )
    flags.add_json(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if (parsed.model is None) != (parsed.prefill_tps is None):
        raise SettingsError("--model and --prefill-tps belong together; give both, or neither.")
    model = None if parsed.model is None else read_model(parsed.model, None)
    found = check(str(parsed.url))
    paying = None
    if model is not None and found.read_mb_per_s:
        store = KvSource(found.store, found.read_mb_per_s * 1e6, found.first_ms * 1e3)
        tokens = _TOKENS
        paying = breakeven(model.shape, parsed.prefill_tps, tokens, [store]).contests[0]
    if parsed.json:
        pays = None if paying is None else asdict(paying)
        print(json.dumps({**asdict(found), "sound": found.is_sound, "pays": pays}, indent=2))
    else:
        print(_readable(found, paying, parse_url(str(parsed.url)).cap_bytes))
    return 0 if found.is_sound else 1


def check(url: str) -> StoreCheck:
    """Try a store; StartupError if the URL is invalid, or the store does not answer."""
    wanted = parse_url(url)
    host = processes.host_name("forebay remote check")  # differs from that of any running pool
    tier = RemoteTier.open(url, host, _OPTIONS)
    try:
        if not tier.volumes()[0].is_on:
            raise StartupError(f"{wanted.place} does not answer, or cannot be written to.")
        return _check(tier, wanted.place)
    finally:
        tier.close(_CLOSE_S)


def _check(tier: RemoteTier, place: str) -> StoreCheck:
    slab = SharedMemory.of(_RECORDS * _RECORD_BYTES)
    tier.attach(slab)
    namespace = secrets.token_bytes(KEY_BYTES)
    names = [
        RecordName(namespace, 0, secrets.token_bytes(KEY_BYTES), ROOT) for _ in range(_RECORDS)
    ]
    slots = [slab.view[at * _RECORD_BYTES :][:_RECORD_BYTES] for at in range(_RECORDS)]
    payloads = [secrets.token_bytes(_RECORD_BYTES) for _ in names]
    for slot, payload in zip(slots, payloads, strict=True):
        slot[:] = payload

    def store(at: int, done: Callable[[StoreOutcome], None]) -> None:
        tier.submit_store(names[at], slots[at], _RECORD_BYTES, done)

    def load(at: int, done: Callable[[LoadOutcome], None]) -> None:
        tier.submit_load(names[at], slots[at], done, time.monotonic() + _WAIT_S)

    stored, write_s = _all(store, range(_RECORDS))
    for slot in slots:
        slot[:] = bytes(_RECORD_BYTES)
    loaded, read_s = _all(load, range(_RECORDS))
    exact = sum(
        isinstance(loaded.get(at), Hit) and slots[at] == payloads[at] for at in range(_RECORDS)
    )
    alone_s = [_all(load, [at])[1] for at in range(_RECORDS)]
    deleted = tier.erase(namespace)
    total_mb = _RECORDS * _RECORD_BYTES / 1e6
    return StoreCheck(
        place,
        sum(isinstance(each, Stored) for each in stored.values()),
        exact,
        deleted,
        round(total_mb / write_s, 1),
        round(total_mb / read_s, 1),
        round(statistics.median(alone_s) * 1e3, 2),
    )


def _all(
    submit: Callable[[int, Callable[[LoadOutcome | StoreOutcome], None]], None],
    numbers: "range | list[int]",
) -> tuple[dict[int, LoadOutcome | StoreOutcome], float]:
    """Submit all and wait; returns the outcomes that came in time, and how long that took."""
    answers: dict[int, LoadOutcome | StoreOutcome] = {}
    finished = threading.Event()

    def done(at: int, outcome: LoadOutcome | StoreOutcome) -> None:
        answers[at] = outcome
        if len(answers) == len(numbers):
            finished.set()

    began = time.monotonic()
    for at in numbers:
        submit(at, lambda outcome, at=at: done(at, outcome))  # type: ignore[misc]
    finished.wait(_WAIT_S)
    return dict(answers), time.monotonic() - began


def _readable(found: StoreCheck, paying: SourceBreakeven | None, cap_bytes: int) -> str:
    size = format_size(_RECORD_BYTES)
    state = "can be used" if found.is_sound else "must not be used as it is"
    if not found.is_sound and cap_bytes < _CAP_BYTES_MIN:
        state += f": this check needs a cap of {format_size(_CAP_BYTES_MIN)} or more"
    took = f"{found.stored} of {_RECORDS} records of {size}, {found.write_mb_per_s} MB/s"
    return "\n".join(
        [
            f"stored     {took}",
            f"loaded     {found.loaded}, verified, {found.read_mb_per_s} MB/s",
            f"one alone  {found.first_ms} ms",
            f"deleted    {found.deleted}",
            *([] if paying is None else [f"a hit pays {_pays(paying)}"]),
            f"{found.store} {state}",
        ]
    )


def _pays(found: SourceBreakeven) -> str:
    return f"{pays_from(found)}; {_TOKENS:,} tokens come {found.speedup:.2f} times as fast"
