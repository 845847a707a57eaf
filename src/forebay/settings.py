"""Settings: one frozen dataclass, read from flags, variables and a file, in this order of strength.

Each source is a mapping from names to values, with a function that spells a name as it is written
in that source, for errors; an engine's extra configuration is one more such source. An unknown name
is an error, a value is used as written or refused, and a stronger source replaces a whole value.
`docs/settings.md` is generated from the fields below.
"""

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from forebay.errors import SettingsError
from forebay.files import read_regular
from forebay.quantity import parse_count, parse_size
from forebay.tenants import TenantSetting, parse_tenants
from forebay.urls import REMOTES_MAX, RemoteUrl, parse_url

VARIABLE_PREFIX: Final = "FOREBAY_"
FILE_BYTES_MAX: Final = 1 << 20  # of a file with settings
ABSENT: Final = ("start", "fail", "serve")  # what an engine may do if no pool answers
REQUESTS_SHOWN: Final = ("operators", "all", "none")  # who may see them over HTTP
TRACE_BYTES: Final = 1 << 30  # default size at which a trace ends
DRAM_BYTES_MIN: Final = 4 << 20
DISK_BYTES_MIN: Final = 64 << 20
NEAR: Final = 0.75  # similarity, up to 1, from which a name counts as a misspelt other one
_NODE: Final = re.compile(r"[0-9]|[1-9][0-9]{1,2}")  # the number of a memory node
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DOC: Final = "doc"
_PARSE: Final = "parse"
_ON: Final = frozenset({"true", "yes", "on", "1"})
_OFF: Final = frozenset({"false", "no", "off", "0"})


class PrefetchMode(StrEnum):
    """Which dialogs are read back from drives before they are asked for."""

    OFF = "off"
    HINTS = "hints"  # those for which a caller told when they return
    ON = "on"  # all those for which it is known how their answers ended


class DiskSetting(NamedTuple):
    """One directory that the pool may fill, and its cap."""

    path: str
    cap_bytes: int

    def __str__(self) -> str:
        return f"{self.path}:{self.cap_bytes}"


class SettingsSource(NamedTuple):
    """A source of settings."""

    values: Mapping[str, object]
    spell: Callable[[str], str]  # a setting's name as it is written there, for error sentences


def _quoted(value: object) -> str:
    return f"'{str(value)[:80]}'"


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return parse_size(str(value))
    if isinstance(value, str):
        return parse_size(value)
    raise SettingsError(f"{_quoted(value)} is not a size; write one as 512MiB, 64GiB or 1TB.")


def parse_dram(value: object) -> int:
    """The bytes of host memory; a SettingsError if these are too few to hold chunks."""
    if (size_bytes := _size(value)) < DRAM_BYTES_MIN:
        raise SettingsError(
            f"{_quoted(value)} is too small; write {_size_plain(DRAM_BYTES_MIN)} or more."
        )
    return size_bytes


def _count(value: object) -> int:
    count = parse_count(value) if isinstance(value, str) else value
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return count
    raise SettingsError(f"{_quoted(value)} is not a whole number of 0 or more.")


def _uid(value: object) -> int:
    if isinstance(value, str) and not value.strip().isdecimal():
        raise SettingsError(f"{_quoted(value)} is not the number of a user.")
    return _count(value)


def _positive(value: object) -> int:
    if (count := _count(value)) == 0:
        raise SettingsError("'0' is too few; at least 1 is needed.")
    return count


def _duration(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or number < 0:
        raise SettingsError(f"{_quoted(value)} is not a number of 0 or more.")
    return number


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in _ON | _OFF:
        raise SettingsError(f"{_quoted(value)} is neither true nor false.")
    return text in _ON


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise SettingsError("a text is needed, in quotes and without NUL.")
    return value


def _absent(value: object) -> str:
    if value not in ABSENT:
        raise SettingsError(f"{_quoted(value)} is none of {', '.join(ABSENT)}.")
    return str(value)


def _prefetched(value: object) -> str:
    if value not in tuple(PrefetchMode):
        raise SettingsError(f"{_quoted(value)} is none of {', '.join(PrefetchMode)}.")
    return str(value)


class NumaSetting(NamedTuple):
    """Where DRAM should lie: on these nodes, near these GPUs, or, without either, near all GPUs."""

    is_on: bool = True
    nodes: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()  # PCI addresses


def parse_numa(text: str) -> NumaSetting:
    """Parse `auto`, `off`, or a list of nodes, or of GPUs by PCI address."""
    words = [word.strip().lower() for word in text.split(",")]
    if words in (["auto"], ["off"]):
        return NumaSetting(is_on=words == ["auto"])
    if all(_NODE.fullmatch(word) for word in words):
        return NumaSetting(nodes=tuple(sorted({int(word) for word in words})))
    if all(_PCI.fullmatch(word) for word in words):
        return NumaSetting(gpus=tuple(dict.fromkeys(words)))
    raise SettingsError(
        f"{_quoted(text)} is not auto, off, or a list of nodes (0,1) or of PCI addresses of GPUs"
        " (0000:3b:00.0)."
    )


def _numa(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)
    parse_numa(text)
    return text


def _requests_shown(value: object) -> str:
    if value not in REQUESTS_SHOWN:
        raise SettingsError(f"{_quoted(value)} is none of {', '.join(REQUESTS_SHOWN)}.")
    return str(value)


def _many(value: object) -> list[object]:
    if isinstance(value, str):
        return [part for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple):
        return list(value)
    raise SettingsError(f"{_quoted(value)} is not a list.")


def _uids(value: object) -> tuple[int, ...]:
    return tuple(_uid(part) for part in _many([value] if isinstance(value, int) else value))


def _disks(value: object) -> tuple[DiskSetting, ...]:
    disks = tuple(parse_disk(_text(part)) for part in _many(value))
    paths = [os.path.normpath(disk.path) for disk in disks]
    for path in paths:
        if paths.count(path) > 1:
            raise SettingsError(f"{_quoted(path)} is named twice; give each directory one size.")
    return disks


def _remotes(value: object) -> tuple[RemoteUrl, ...]:
    urls = tuple(parse_url(_text(part)) for part in _many(value))
    if len(urls) > REMOTES_MAX:
        raise SettingsError(f"{len(urls)} stores are too many; name up to {REMOTES_MAX}.")
    places = [(os.path.normpath(url.path), url.endpoint) for url in urls]
    for place in places:
        if places.count(place) > 1:
            raise SettingsError(f"{_quoted(place[0])} is named twice; name each store once.")
    return urls


def parse_disk(text: str) -> DiskSetting:
    """Parse `DIR:SIZE`; the directory may contain colons, since the last one separates the size."""
    path, colon, size = text.strip().rpartition(":")
    if not colon or not path:
        raise SettingsError(
            f"{_quoted(text)} is not DIR:SIZE; write it as /mnt/nvme/forebay:500GiB."
        )
    cap_bytes = parse_size(size)
    if cap_bytes < DISK_BYTES_MIN:
        raise SettingsError(
            f"{_quoted(text)} is too small; write {_size_plain(DISK_BYTES_MIN)} or more."
        )
    return DiskSetting(path, cap_bytes)


def parse_trace(text: str) -> tuple[str, int]:
    """Parse `FILE` or `FILE:SIZE` into a path and the size at which the trace ends."""
    path, _, size = text.rpartition(":")
    try:
        return (path, parse_size(size)) if path else (text, TRACE_BYTES)
    except SettingsError:
        return text, TRACE_BYTES  # the colon is part of the file's name


def _trace(value: object) -> str:
    text = _text(value)
    if text and not parse_trace(text)[1]:
        raise SettingsError(f"{_quoted(text)} gives the trace no space; write a size above 0.")
    return text


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse `ADDRESS:PORT`, with an IPv6 address in brackets; None for `none` or an empty text."""
    if text.strip().lower() in {"", "none"}:
        return None
    host, colon, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
        number = int(port) if port.isdecimal() and len(port) <= 5 else -1
    except ValueError:
        address, number = "", -1
    if not colon or not 0 <= number < 1 << 16:
        raise SettingsError(
            f"{_quoted(text)} is not ADDRESS:PORT; write 127.0.0.1:7411, [::1]:7411 or none."
        )
    return address, number


def _address(value: object) -> str:
    text = _text(value)
    parse_address(text)
    return text


def _encryption(value: object) -> str:
    text = _text(value)
    kind, colon, place = text.partition(":")
    is_fd = kind != "fd" or (place.isdecimal() and len(place) <= 9)
    if text and not (colon and place and kind in {"file", "fd", "command", "env"} and is_fd):
        raise SettingsError(
            "keys come from file:PATH, fd:NUMBER, command:WORDS or env:NAME; write one of these."
        )
    return text


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value) or "none"


def _size_plain(value: object) -> str:
    """A default size in the largest unit that is exact."""
    assert isinstance(value, int)
    power = next(power for power in (4, 3, 2, 1, 0) if value % 1024**power == 0)
    return f"{value >> 10 * power}{('', 'KiB', 'MiB', 'GiB', 'TiB')[power]}" if value else "0"


def _setting(default: object, parse: Callable[[object], object], doc: str) -> Any:  # noqa: ANN401
    """A field with its default, its parser and its description."""
    return field(default=default, metadata={_DOC: doc, _PARSE: parse})


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; every field has a description, a parser and a default."""

    dram: int = _setting(
        4 << 30,
        parse_dram,
        "Host memory for chunks, all of it taken at start. 4MiB is the least; a model needs"
        " eight chunks.",
    )
    disk: tuple[DiskSetting, ...] = _setting(
        (),
        _disks,
        "Directories for chunks, each with its hard cap, as DIR:SIZE, at least 64MiB; the flag"
        " may be repeated, the variable separates with commas.",
    )
    remote: tuple[RemoteUrl, ...] = _setting(
        (),
        _remotes,
        "Stores that pools of several hosts share, each with what this host may hold there, as"
        " file:///mnt/shared/forebay?cap=1TiB; the flag may be repeated, the variable separates"
        " with commas.",
    )
    socket: str = _setting(
        "",
        _text,
        "Path of the pool's Unix socket; none: pool.sock in this user's runtime directory.",
    )
    no_pool: str = _setting(
        "start",
        _absent,
        "What an engine does if no pool answers: start (serves without a pool if that fails),"
        " fail, or serve (without a pool until one answers).",
    )
    strict: bool = _setting(
        False,
        _switch,
        "An engine that would share nothing does not start: its configuration is declined, its"
        " weights are unknown, or there is no pool, whatever no_pool says.",
    )
    weights_id: str = _setting(
        "",
        _text,
        "A name for the engine's weights, a drafter's included, used instead of the hash of their"
        " files: for loaders that read no local files. Engines with the same name share chunks, so"
        " different weights need different names.",
    )
    chunk_tokens: int = _setting(
        0,
        _count,
        "Tokens in a chunk, a multiple of the engine's block; 0: from the model's shape, so"
        " that a record has a few MiB.",
    )
    compress: bool = _setting(
        False,
        _switch,
        "Let the GPU encode KV that is bfloat16, without loss, so that it takes 0.76 of the bytes;"
        " other KV is stored as it is. Engines with this setting and engines without it do not"
        " share encoded chunks.",
    )
    verify_compress: bool = _setting(
        False,
        _switch,
        "Compare all that a GPU encodes or decodes with what the CPU makes of it, and end the"
        " engine where they differ: to look for a fault, too slow for service.",
    )
    min_tokens: int = _setting(
        256, _count, "Prefixes shorter than this many tokens are neither stored nor loaded."
    )
    lookup_deadline_ms: float = _setting(
        50.0,
        _duration,
        "How long a request may be postponed until the pool has answered its lookup, in"
        " milliseconds; the scheduler itself never waits longer than 1 ms per step.",
    )
    load_deadline_ms: float = _setting(
        2000.0,
        _duration,
        "Longest time that a request waits for its load to be promised, in milliseconds; what"
        " is not verified by then is recomputed.",
    )
    realm: str = _setting(
        "", _text, "A secret that keys every name; engines with different ones share nothing."
    )
    tenant: tuple[TenantSetting, ...] = _setting(
        (),
        parse_tenants,
        "Tenants of the pool, each with its quotas and the hashes of its salts; only in a file, as"
        " [[tenant]] tables: docs/tenants.md. Needs tenant_key_file.",
    )
    tenant_key_file: str = _setting(
        "",
        _text,
        "File of at least 16 random bytes, readable by the pool's user alone, from which ids of"
        " tenants and hashes of salts are made; none: no tenants.",
    )
    verify_dram: bool = _setting(False, _switch, "Verify chunks in host memory again at every hit.")
    huge_pages: bool = _setting(False, _switch, "Back host memory with 2 MiB pages.")
    numa: str = _setting(
        "auto",
        _numa,
        "NUMA nodes that host memory comes from: auto (near the engine's GPUs, where that much is"
        " left; never a GPU's own memory), off, or nodes, as 0 or 0,1: these or none.",
    )
    linger_s: float = _setting(
        600.0, _duration, "Seconds that a pool started by an engine outlives its last engine."
    )
    allow_uid: tuple[int, ...] = _setting(
        (),
        _uids,
        "User ids trusted besides your own: on a pool, users whose engines may join; on an engine"
        " or a command, users whose pool may be joined.",
    )
    keep_on_reset: bool = _setting(
        False,
        _switch,
        "Keep the namespace when the engine resets its cache: only for engines that sleep and"
        " wake up with the same weights.",
    )
    read_depth: int = _setting(8, _positive, "Concurrent reads per directory.")
    write_depth: int = _setting(4, _positive, "Concurrent writes per directory.")
    disk_writes_a_day: int = _setting(
        0,
        _size,
        "Bytes that may be written to the directories in any 24 hours, so that drives last;"
        " 0: no limit.",
    )
    disk_rated_life: int = _setting(
        0,
        _size,
        "Bytes that the drives of the directories are rated for in their life, all together (TBW);"
        " shown beside what was written. 0: not known.",
    )
    prefetch: str = _setting(
        "hints",
        _prefetched,
        "Which dialogs an idle drive reads back into DRAM before they are asked for: hints (those"
        " of which callers say when they return), on (all that are likely to), or off.",
    )
    metrics_address: str = _setting(
        "127.0.0.1:7411",
        _address,
        "Where the pool answers HTTP with its metrics and health, as ADDRESS:PORT. Port 0: any that"
        " is free; none: nowhere. Any address but this host's loopback needs metrics_token_file. A"
        " pool whose port is taken goes on without, and says so.",
    )
    metrics_token_file: str = _setting(
        "",
        _text,
        "File that holds the token which HTTP clients must present, as a bearer token or as a"
        " password; none: no token.",
    )
    metrics_requests: str = _setting(
        "operators",
        _requests_shown,
        "Who may see recent requests over HTTP: operators (processes of the pool's user, root and"
        " the users of --operator-uid on this host, and whoever presents the token), all, or none.",
    )
    encryption: str = _setting(
        "",
        _encryption,
        "Where the keys come from that records are encrypted with in directories and stores, as"
        " file:PATH, fd:NUMBER, command:WORDS or env:NAME; none: they are not encrypted. DRAM"
        " never is.",
    )
    trace: str = _setting(
        "",
        _trace,
        "File to which one line per request is written, with nothing derived from text, as FILE"
        " or FILE:SIZE; it ends at SIZE, by default 1GiB. none: no trace.",
    )


NAMES: Final = tuple(each.name for each in fields(Settings))


class SettingDoc(NamedTuple):
    """A setting as the docs describe it."""

    name: str
    doc: str
    default: str


def documentation() -> list[SettingDoc]:
    """Every setting with its description and its default, in order."""
    return [
        SettingDoc(each.name, each.metadata[_DOC], show(each.default))
        for each in fields(Settings)
        for show in [_size_plain if each.metadata[_PARSE] in {_size, parse_dram} else _plain]
    ]


def build(sources: Sequence[SettingsSource]) -> Settings:
    """The settings from these sources, strongest first; every value in every source is checked."""
    parsers = {each.name: each.metadata[_PARSE] for each in fields(Settings)}
    chosen: dict[str, object] = {}
    for source in sources:
        for name, value in source.values.items():
            if name not in parsers:
                raise SettingsError(_unknown(name, source))
            try:
                parsed = parsers[name](value)
            except SettingsError as error:
                raise SettingsError(f"{source.spell(name)}: {error}") from None
            chosen.setdefault(name, parsed)
    return Settings(**chosen)  # type: ignore[arg-type]


def from_flags(values: Mapping[str, object]) -> SettingsSource:
    """The flags of a command; those that were not given are None."""
    given = {name: value for name, value in values.items() if value is not None}
    return SettingsSource(given, lambda name: "--" + name.replace("_", "-"))


def from_environment(environment: Mapping[str, str]) -> SettingsSource:
    """Every variable that begins with FOREBAY_."""
    values = {
        name.removeprefix(VARIABLE_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX)
    }
    return SettingsSource(values, lambda name: VARIABLE_PREFIX + name.upper())


def from_file(path: str) -> SettingsSource:
    """The settings in a TOML file, one key per setting."""
    content = read_regular(path, FILE_BYTES_MAX)
    try:
        values = tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise SettingsError(f"'{path}' is not a text file; write it as TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"'{path}' is not TOML: {error}.") from None
    except (ValueError, RecursionError):  # a number of too many digits, or brackets too deep
        raise SettingsError(f"'{path}' is no TOML that can be read; simplify it.") from None
    return SettingsSource(values, lambda name: f"{path}: {name}")


def _unknown(name: str, source: SettingsSource) -> str:
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=NEAR)
    hint = f"did you mean {source.spell(near[0])}?" if near else "docs/settings.md lists them all."
    return f"{source.spell(name)} is not a setting; {hint}"
