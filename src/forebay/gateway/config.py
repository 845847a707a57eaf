"""The gateway's file: engines, keys and limits as TOML; a SettingsError of one sentence for a slip.

    listen = "127.0.0.1:8000"

    [[engine]]
    name = "a"
    model = "qwen3-8b"              # as the engine serves it
    url = "http://127.0.0.1:8001"
    pool = true                     # it has Forebay's connector: hints are added to requests

    [[key]]
    name = "team"
    token_sha256 = "9f86d081…"      # of the token; `forebay gateway key` makes one

Without keys everybody who reaches the address may ask, so it must be a loopback address then.
"""

import hashlib
import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forebay.errors import SettingsError
from forebay.files import read_regular
from forebay.gateway.swap.plan import check_swaps
from forebay.identity.tenants import SECRET_BYTES_MAX, SECRET_BYTES_MIN
from forebay.quantity import parse_size
from forebay.settings import parse_address

ENGINES_MAX: Final = 256  # each is a label of metrics
GPUS_MAX: Final = 64
KEYS_MAX: Final = 256  # each is a label of metrics, too
ROLES: Final = ("prefill", "decode")  # engines of one model and host that share work over its pool
ANONYMOUS: Final = "anonymous"  # the key that everybody has if the file names none
_FILE_BYTES_MAX: Final = 1 << 20
_NAME: Final = re.compile(r"[0-9A-Za-z_][0-9A-Za-z._-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_EMPTY_HASH: Final = hashlib.sha256().hexdigest()
_SALT_PERSON: Final = b"forebay gateway"
_MODEL_LETTERS_MAX: Final = 256
_NUMBER_MAX: Final = 10**9


@dataclass(frozen=True, slots=True)
class GpuSetting:
    """A GPU that engines share, one of them awake at a time."""

    name: str
    host_memory: int = 0  # bytes for engines that sleep, and for the pool; 0: no limit
    slab: int = 0  # of these bytes, how many the pool takes
    patience_s: float = 60  # how long a request waits while another engine has work
    idle_s: float = 5  # how long an engine must be without work before it gives way
    awake_s: float = 10  # how long an engine that has work stays awake at least
    drain_s: float = 20  # how long answers may take to end before the engine sleeps with them


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """An `[[engine]]` of the file."""

    name: str
    model: str  # the name under which it serves its model
    url: str  # without a path
    host: str = "local"  # engines of one host that have the pool share it
    gpu: str = ""  # the name of a [[gpu]]; if the file has none, any text
    command: tuple[str, ...] = ()  # starts it; empty: somebody else does
    swap: str = ""  # how it rests: sleep or stop; empty: never
    weights: int = 0  # bytes that it keeps in host memory while it sleeps at level 1
    start_s: int = 900  # how long its process may take to come up
    pool: bool = False  # it has Forebay's connector
    max_num_seqs: int = 256  # requests that it runs at once: vLLM's flag of this name
    kv_tokens: int = 0  # size of its KV cache; 0: taken from its metrics
    long_prefills: int = 1  # long prompts (`long_prompt_tokens`) that it computes at once
    role: str = ""  # one of ROLES; empty: it does prefill and decode


@dataclass(frozen=True, slots=True)
class KeySetting:
    """A `[[key]]` of the file: who may send requests, and how many."""

    name: str
    token_sha256: str = ""  # empty: everybody has this key
    weight: int = 1  # its share, relative to other keys, when requests wait
    requests_max: int = 0  # in the gateway at once; 0: no limit
    tokens_a_minute: int = 0  # uncached prompt and answer tokens; 0: no limit
    operator: bool = False  # may see /status and /metrics
    tenant: str = ""  # to whom its requests belong; empty: as their own cache_salt says
    cache_salt: str = field(default="", repr=False)  # the tenant's, a secret


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The whole file."""

    listen: tuple[str, int]
    engines: tuple[EngineSetting, ...]
    keys: tuple[KeySetting, ...]  # never empty: see ANONYMOUS
    body_bytes_max: int = 64 << 20  # of one request
    bodies_bytes_max: int = 1 << 30  # of all requests at once
    queue_requests_max: int = 1024  # that wait for an engine, over all keys
    queue_s: float = 600.0  # how long a request may wait for an engine
    long_prompt_tokens: int = 8192  # uncached tokens from which a prompt counts as long
    gpus: tuple[GpuSetting, ...] = ()
    state_dir: str = ""  # holds notes and logs of the processes that were started
    prefill_tokens: int = 2048  # uncached tokens from which an engine of role prefill computes it

    @property
    def has_keys(self) -> bool:
        """Whether clients must present a token."""
        return bool(self.keys[0].token_sha256)


_ENGINE_FIELDS: Final = {
    "name": str, "model": str, "url": str, "host": str, "gpu": str, "pool": bool,
    "max_num_seqs": int, "kv_tokens": int, "long_prefills": int, "role": str,
    "command": list, "swap": str, "weights": str, "start_s": int,
}  # fmt: skip
_KEY_FIELDS: Final = {
    "name": str, "token_sha256": str, "weight": int, "requests_max": int,
    "tokens_a_minute": int, "operator": bool, "tenant": str,
}  # fmt: skip
_GPU_FIELDS: Final = {
    "name": str, "host_memory": str, "slab": str, "patience_s": int, "idle_s": int,
    "awake_s": int, "drain_s": int,
}  # fmt: skip
_FILE_FIELDS: Final = {
    "listen": str, "engine": list, "gpu": list, "state_dir": str, "key": list,
    "body_limit": str, "bodies_limit": str,
    "queue_requests": int, "queue_s": int, "long_prompt_tokens": int,
    "prefill_tokens": int, "salt_key_file": str,
}  # fmt: skip
_KINDS: Final = {str: "a text", bool: "true or false", int: "a whole number", list: "tables"}
_POSITIVE: Final = (
    "weight",
    "max_num_seqs",
    "long_prefills",
    "queue_requests",
    "queue_s",
    "start_s",
)


def read_config(path: str | Path) -> GatewayConfig:
    """Read and check the file at this path; SettingsError."""
    try:
        table = tomllib.loads(read_regular(path, _FILE_BYTES_MAX).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"'{path}' is not TOML: {str(error).rstrip('.')}.") from None
    try:
        return parse_config(table)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def parse_config(table: Mapping[str, Any]) -> GatewayConfig:
    """The configuration in a file's table; a SettingsError says in one sentence what is wrong."""
    _check_fields("the file", table, _FILE_FIELDS)
    engines = tuple(_engine(each) for each in _tables("engine", table, ENGINES_MAX))
    gpus = tuple(_gpu(each) for each in _tables("gpu", table, GPUS_MAX))
    keys = tuple(_key(each) for each in _tables("key", table, KEYS_MAX))
    if any(each.tenant for each in keys):
        secret = _salt_secret(table.get("salt_key_file", ""))
        keys = tuple(
            replace(each, cache_salt=tenant_salt(secret, each.tenant)) if each.tenant else each
            for each in keys
        )
    if not engines:
        raise SettingsError("it names no engine; add an [[engine]] with name, model and url.")
    _refuse_repeated("engine", [each.name for each in engines])
    _refuse_repeated("engine's url", [each.url for each in engines])
    _refuse_repeated("gpu", [each.name for each in gpus])
    _refuse_roles(engines, {each.name for each in gpus})
    _refuse_repeated("key", [each.name for each in keys])
    _refuse_repeated("key's token_sha256", [each.token_sha256 for each in keys])
    found = parse_address(table.get("listen", "127.0.0.1:8000"))
    if found is None:
        raise SettingsError("listen: name an address, as 127.0.0.1:8000.")
    if not keys and not ipaddress.ip_address(found[0]).is_loopback:
        raise SettingsError(
            f"listen: {table['listen']} can be reached from other hosts and needs keys; add a"
            " [[key]], as `forebay gateway key` prints it."
        )
    sizes = {
        field: _size(name, table[name])
        for name, field in (("body_limit", "body_bytes_max"), ("bodies_limit", "bodies_bytes_max"))
        if name in table
    }
    counts = {
        field: table[name]
        for name, field in (
            ("queue_requests", "queue_requests_max"),
            ("queue_s", "queue_s"),
            ("long_prompt_tokens", "long_prompt_tokens"),
            ("prefill_tokens", "prefill_tokens"),
        )
        if name in table
    }
    config = GatewayConfig(
        found, engines, keys or (KeySetting(ANONYMOUS),), **sizes, **counts,
        gpus=gpus, state_dir=table.get("state_dir", ""),
    )  # fmt: skip
    check_swaps(gpus, engines, config.queue_s, config.state_dir)
    return config


def _tables(kind: str, table: Mapping[str, Any], most: int) -> list[Mapping[str, Any]]:
    found = table.get(kind, [])
    if not all(isinstance(each, Mapping) for each in found):
        raise SettingsError(f"{kind}: write [[{kind}]] tables.")
    if len(found) > most:
        raise SettingsError(f"it has {len(found)} [[{kind}]] tables; name up to {most}.")
    return list(found)


def _check_fields(what: str, table: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for name, value in table.items():
        if name not in fields:
            known = ", ".join(fields)
            raise SettingsError(f"{what}: '{name[:80]}' is none of {known}.")
        kind = fields[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            meant = "a list of words" if name == "command" else _KINDS[kind]
            raise SettingsError(f"{what}: {name} must be {meant}.")
        if kind is int and not (1 if name in _POSITIVE else 0) <= value <= _NUMBER_MAX:
            raise SettingsError(f"{what}: {name} is out of range.")


def _named(kind: str, table: Mapping[str, Any]) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingsError(
            f"each [[{kind}]] has a name of 1 to 64 letters, digits, '_', '.' and '-',"
            " the first of them no sign."
        )
    return name


def _engine(table: Mapping[str, Any]) -> EngineSetting:
    name = _named("engine", table)
    _check_fields(f"engine {name}", table, _ENGINE_FIELDS)
    model = table.get("model", "")
    if not 1 <= len(model) <= _MODEL_LETTERS_MAX or not model.isprintable():
        raise SettingsError(f"engine {name}: model is the name under which it serves its model.")
    command = table.get("command", [])
    if not all(isinstance(word, str) and word for word in command):
        raise SettingsError(f"engine {name}: command is a list of words.")
    role = table.get("role", "")
    if role and role not in ROLES:
        raise SettingsError(f"engine {name}: role is 'prefill' or 'decode', or left out.")
    if role and not table.get("pool"):
        raise SettingsError(f"engine {name}: a role needs the pool; set pool = true.")
    made = {"url": _url(name, table.get("url", "")), "command": tuple(command)}
    return EngineSetting(**{**table, **made, **_sizes(f"engine {name}", table, "weights")})


def _gpu(table: Mapping[str, Any]) -> GpuSetting:
    name = _named("gpu", table)
    _check_fields(f"gpu {name}", table, _GPU_FIELDS)
    return GpuSetting(**{**table, **_sizes(f"gpu {name}", table, "host_memory", "slab")})


def _refuse_roles(engines: tuple[EngineSetting, ...], shared_gpus: set[str]) -> None:
    """SettingsError if an engine has a role, and none of its model and host has the other role."""
    there = {(each.model, each.host, each.role) for each in engines}
    for each in engines:
        other = "decode" if each.role == "prefill" else "prefill"
        if each.role and each.gpu in shared_gpus:
            raise SettingsError(
                f"engine {each.name}: one that shares its GPU with others has no role."
            )
        if each.role and (each.model, each.host, other) not in there:
            raise SettingsError(
                f"engine {each.name}: role = '{each.role}' needs an engine of role '{other}' with"
                " the same model and host."
            )


def _url(name: str, text: str) -> str:
    try:
        parts = urlsplit(text)
        is_plain = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        is_plain = is_plain and not (parts.query or parts.fragment or parts.username)
    except ValueError:
        is_plain = False
    if not is_plain or parts.path.rstrip("/"):
        raise SettingsError(f"engine {name}: url is its address alone, as http://127.0.0.1:8001.")
    return text.rstrip("/")


def _key(table: Mapping[str, Any]) -> KeySetting:
    name = _named("key", table)
    _check_fields(f"key {name}", table, _KEY_FIELDS)
    if name == ANONYMOUS:
        raise SettingsError(f"no key can be called {name}: who needs none is listed so.")
    if table.get("tenant") and not _NAME.fullmatch(table["tenant"]):
        raise SettingsError(f"key {name}: tenant is 1 to 64 letters, digits, '_', '.' and '-'.")
    if not _HASH.fullmatch(table.get("token_sha256", "")):
        # The value may be a token in plain text, and is not repeated.
        raise SettingsError(
            f"key {name}: token_sha256 is 64 hex digits; `forebay gateway key` prints them."
        )
    if table["token_sha256"] == _EMPTY_HASH:
        raise SettingsError(f"key {name}: token_sha256 is that of no token, which everybody has.")
    return KeySetting(**table)


def _sizes(what: str, table: Mapping[str, Any], *names: str) -> dict[str, int]:
    return {name: _size(f"{what}: {name}", table[name]) for name in names if name in table}


def tenant_salt(secret: bytes, tenant: str) -> str:
    """The `cache_salt` of all requests of a tenant's keys; nobody can guess it without the secret.

    It is the same in every gateway that has the secret, so these share what is stored.
    """
    key = hashlib.blake2b(secret).digest()
    digest = hashlib.blake2b(tenant.encode(), digest_size=32, key=key, person=_SALT_PERSON)
    return digest.hexdigest()


def _salt_secret(path: str) -> bytes:
    if not path:
        raise SettingsError("a key with a tenant needs salt_key_file: a secret of this gateway.")
    secret = read_regular(path, SECRET_BYTES_MAX).strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingsError(
            f"salt_key_file '{path}' needs {SECRET_BYTES_MIN} bytes or more; make one with:"
            f" (umask 077; openssl rand -hex 32 > '{path}')."
        )
    return secret


def _size(name: str, text: str) -> int:
    try:
        size_bytes = parse_size(text)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from None
    if size_bytes < 1024:
        raise SettingsError(f"{name}: write 1KiB or more.")
    return size_bytes


def _refuse_repeated(what: str, listed: list[str]) -> None:
    each, count = next(iter(Counter(listed).most_common(1)), ("", 0))
    if count > 1:
        shown = f"a {what}" if "token" in what else f"{what} {each}"
        raise SettingsError(f"{shown} is listed twice.")
