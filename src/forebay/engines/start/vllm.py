"""How vLLM is started: its command line, its environment, and our part of its configuration.

vLLM itself is not imported: it is run, as a module, by the Python that runs us.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from forebay.errors import StartupError
from forebay.settings import (
    VARIABLE_PREFIX,
    Settings,
    SettingsSource,
    build,
    from_environment,
)

MODULE: Final = "vllm.entrypoints.openai.api_server"
TRANSFER_FLAG: Final = "--kv-transfer-config"
_CONNECTOR: Final = {
    "kv_connector": "ForebayConnector",
    # vLLM knows the name from our plugin, unless VLLM_PLUGINS excludes that.
    "kv_connector_module_path": "forebay.engines.vllm.connector",
    "kv_role": "kv_both",
}
_ALWAYS_LOAD: Final = "always_load"
# A command line is visible to every user of the machine, so these go by variables.
_SECRETS: Final = ("realm",)


def require() -> None:
    """A StartupError if vLLM is not installed in this environment."""
    if importlib.util.find_spec("vllm") is None:
        raise StartupError(
            "vLLM is not installed beside this Forebay: install Forebay into the environment that"
            " has vLLM, or vLLM into this one: pip install vllm. In a clone, make vllm makes an"
            " environment with both: .venv-vllm/bin/forebay"
        )


def transfer_config(settings: Settings, socket_path: str) -> dict[str, object]:
    """The value of `--kv-transfer-config` for these settings and the pool at that socket."""
    extra: dict[str, object] = {
        name: value
        for name, value in asdict(settings).items()
        if name not in _SECRETS and value != getattr(Settings(), name)
    }
    if settings.disk:
        # The pool is started elsewhere, so a path must mean the same there.
        extra["disk"] = [
            f"{os.path.abspath(disk.path)}:{disk.cap_bytes}"  # noqa: PTH100
            for disk in settings.disk
        ]
    extra["socket"] = socket_path
    return {**_CONNECTOR, "kv_connector_extra_config": extra}


def settings_of(transfer: Any) -> Settings:
    """Our settings in vLLM's `KVTransferConfig`; they override our environment variables."""
    extra = dict(transfer.kv_connector_extra_config)
    extra.pop(_ALWAYS_LOAD, None)
    spelled = SettingsSource(extra, lambda name: f'kv_connector_extra_config["{name}"]')
    return build([spelled, from_environment(os.environ)])


def always_loads(transfer: Any) -> bool:
    """A switch for measurements of drives; it is no setting, and nobody else should use it."""
    return bool(transfer.kv_connector_extra_config.get(_ALWAYS_LOAD))


def command(arguments: Sequence[str], transfer: Mapping[str, object] | None) -> list[str]:
    """The server's command line: ours, then the user's words; without `transfer`, plain vLLM."""
    ours = [] if transfer is None else [TRANSFER_FLAG, json.dumps(transfer)]
    return [sys.executable, "-P", "-m", MODULE, *ours, *arguments]


def environment(settings: Settings, base: Mapping[str, str], *, offline: bool) -> dict[str, str]:
    """The server's variables: no telemetry, and of our settings only the secret ones."""
    variables = {
        name: value for name, value in base.items() if not name.startswith(VARIABLE_PREFIX)
    }
    variables.setdefault("VLLM_NO_USAGE_STATS", "1")
    variables.setdefault("DO_NOT_TRACK", "1")
    if offline:
        variables["HF_HUB_OFFLINE"] = "1"
    for name in _SECRETS:
        if value := getattr(settings, name):
            variables[VARIABLE_PREFIX + name.upper()] = value
    return variables
