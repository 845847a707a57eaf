"""`forebay gateway`: several engines, of one model or of many, behind one address."""

import argparse
import asyncio
import hashlib
import ipaddress
import json
import os
import secrets
from typing import Final

from forebay.cli import flags, logs
from forebay.cli.parser import Commands
from forebay.errors import SettingsError
from forebay.gateway import service
from forebay.gateway.config import GatewayConfig, GpuSetting, read_config
from forebay.gateway.swap.children import stop_engines
from forebay.gateway.swap.plan import host_memory, rests
from forebay.sys import processes

_ACTIONS: Final = ("check", "key", "salt", "stop")
_EPILOG = """\
examples:
  forebay gateway gateway.toml
  forebay gateway check gateway.toml
  forebay gateway key
  forebay gateway stop gateway.toml
  forebay gateway salt gateway.toml search | forebay hash-salt --tenant-key-file tenants.key

The file names engines and keys; docs/gateway.md shows one. `check` reads it and says what it means,
without starting anything. `key` prints a new token for a client, and the lines for the file. `salt`
prints the cache_salt of a tenant's requests, whose hash the pool's settings list. The gateway runs
until SIGTERM or Ctrl-C; engines live on without it, those that it started too: `stop` ends them.
Needs: pip install aiohttp uvloop. Exit status: 0 ended as asked, 2 could not begin.
"""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "gateway",
        description="One OpenAI-compatible address in front of several engines (docs/gateway.md).",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "asked",
        metavar="[check | stop | salt] FILE [TENANT]",
        nargs="+",
        help="the gateway's file; check: only read it; stop: end its engines; salt: print that of a"
        " tenant",
    )
    flags.add_json(parser, "of check and key: print one JSON object instead of text")
    logs.add_flags(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    action, path = _meant(parsed.asked)
    if action == "key":
        return _print_key(as_json=parsed.json)
    config = read_config(path)
    if action == "salt":
        return _print_salt(config, parsed.asked[2])
    if action == "check":
        print(json.dumps(_facts(config)) if parsed.json else _readable(path, config))
        return 0
    if action == "stop":
        stopped = ", ".join(asyncio.run(stop_engines(config)))
        print(f"stopped {stopped}" if stopped else "no engine runs that a gateway started")
        return 0
    service.require()
    processes.allow_descriptors()
    line = "%(asctime)s %(levelname)s %(message)s"
    logs.start(line, form=parsed.log_format, level=parsed.log_level)
    service.run(config)
    return 0


def _meant(words: list[str]) -> tuple[str, str]:
    """The action that these words ask for, and its file."""
    if words == ["key"]:
        return "key", ""
    if len(words) == 1 and words[0] not in _ACTIONS:
        return "run", words[0]
    if len(words) == 2 and words[0] in {"check", "stop"}:
        return words[0], words[1]
    if len(words) == 3 and words[0] == "salt":
        return "salt", words[1]
    raise SettingsError(
        "write: forebay gateway FILE, forebay gateway check FILE, forebay gateway stop FILE,"
        " forebay gateway key, or forebay gateway salt FILE TENANT."
    )


def _print_salt(config: GatewayConfig, tenant: str) -> int:
    """Print the salt alone, for a pipe; whoever knows it can share the tenant's chunks."""
    for key in config.keys:
        if key.tenant == tenant:
            print(key.cache_salt)
            return 0
    raise SettingsError("no [[key]] of this file has that tenant.")


def _print_key(*, as_json: bool) -> int:
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    if as_json:
        print(json.dumps({"token": token, "token_sha256": digest}))
        return 0
    print(f"token for the client, shown only now:\n  {token}\nfor the gateway's file:")
    print(f'  [[key]]\n  name = "CHOOSE-A-NAME"\n  token_sha256 = "{digest}"')
    return 0


def _facts(config: GatewayConfig) -> dict[str, object]:
    models: dict[str, list[str]] = {}
    for engine in config.engines:
        models.setdefault(engine.model, []).append(engine.name)
    return {
        "listen": f"{config.listen[0]}:{config.listen[1]}",
        "is_public": not ipaddress.ip_address(config.listen[0]).is_loopback,
        "models": models,
        "gpus": {gpu.name: _gpu_facts(gpu, config) for gpu in config.gpus},
        "keys": [key.name for key in config.keys] if config.has_keys else [],
        "tenants": {key.name: key.tenant for key in config.keys if key.tenant},
    }


def _gpu_facts(gpu: GpuSetting, config: GatewayConfig) -> dict[str, object]:
    memory = host_memory(gpu, config.engines)
    return {
        "rest": {name: rest.value for name, rest in rests(gpu, config.engines).items()},
        "host_memory": {
            "limit_bytes": memory.limit, "slab_bytes": memory.slab, "weights_bytes": memory.weights
        },
    }  # fmt: skip


def _readable(path: str, config: GatewayConfig) -> str:
    facts = _facts(config)
    assert isinstance(facts["models"], dict)
    lines = [f"{os.path.basename(path)} can be used"]  # noqa: PTH119 - a name, not a path
    reach = "other hosts" if facts["is_public"] else "this host alone"
    lines.append(f"listens at  {facts['listen']}, reached from {reach}")
    lines += [
        f"model       {model}: {', '.join(names)}" for model, names in facts["models"].items()
    ]
    lines += [_gpu_line(gpu, config) for gpu in config.gpus]
    keys = ", ".join(
        f"{key.name} (tenant {key.tenant})" if key.tenant else key.name for key in config.keys
    )
    lines.append(f"keys        {keys if config.has_keys else 'none: whoever reaches it may ask'}")
    return "\n".join(lines)


def _gpu_line(gpu: GpuSetting, config: GatewayConfig) -> str:
    how = ", ".join(f"{name} ({rest})" for name, rest in rests(gpu, config.engines).items())
    memory = host_memory(gpu, config.engines)
    taken = f"{(memory.slab + memory.weights) / (1 << 30):.1f} GiB of the host's memory"
    of = f", of {memory.limit / (1 << 30):.1f} GiB" if memory.limit else ""
    return f"gpu         {gpu.name}: one awake of {how}; {taken}{of}"
