"""The user's configuration of SGLang's dynamic backend as our settings; no SGLang is imported."""

import os
from collections.abc import Mapping
from typing import Final

from forebay.errors import SettingsError, StartupError
from forebay.settings import Settings, SettingsSource, build, from_environment

# Keys of the same configuration that are SGLang's own; others, such as its prefetch threshold, it
# takes out before a backend sees them.
_THEIRS: Final = ("backend_name", "module_path", "class_name", "interface_v1")
# Settings that only vLLM engines use: SGLang decides these by other means.
_WITHOUT_EFFECT: Final = ("chunk_tokens", "compress", "min_tokens")


def settings_of(extra: Mapping[str, object] | None) -> Settings:
    """Our settings in SGLang's backend configuration; they override our environment variables."""
    ours = {name: value for name, value in (extra or {}).items() if name not in _THEIRS}
    spelled = SettingsSource(ours, lambda name: f'hicache_storage_backend_extra_config["{name}"]')
    return build([spelled, from_environment(os.environ)])


def require_batches(extra: Mapping[str, object] | None) -> None:
    """A SettingsError unless SGLang passes page addresses, many at once."""
    if not (extra or {}).get("interface_v1"):
        raise SettingsError(
            'hicache_storage_backend_extra_config needs "interface_v1": 1; without it SGLang copies'
            " every page once more, one after the other."
        )


def require_prefixes(*, are_passed: bool | None) -> None:
    """A StartupError if SGLang does not pass the pages before a page; None: not known."""
    if are_passed is False:
        raise StartupError(
            'hicache_storage_backend_extra_config needs "hicache_storage_pass_prefix_keys": true;'
            " without it the pool cannot tell which pages continue which."
        )


def without_effect(settings: Settings) -> list[str]:
    """The settings that were given and have no effect in SGLang."""
    default = Settings()
    return [name for name in _WITHOUT_EFFECT if getattr(settings, name) != getattr(default, name)]
