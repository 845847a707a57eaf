"""Opens the store of a URL, and checks that the package it needs is installed."""

from importlib.util import find_spec
from typing import Final

from forebay.errors import StartupError
from forebay.tiers.remote.store import ObjectStore
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.tiers.remote.stores.valkey.store import ValkeyStore
from forebay.urls import VALKEY, RemoteUrl, parse_url

# By scheme: what is imported, and the package that has it.
_PACKAGES: Final = {
    "s3": ("obstore", "obstore"),
    "mooncake": ("mooncake", "mooncake-transfer-engine-non-cuda"),
}


def open_store(url: str, host: str) -> ObjectStore:
    """The store of a URL; nothing is accessed before its first call."""
    wanted = parse_url(url)
    if wanted.scheme == "s3":  # pragma: no cover - run by make test-stores
        # Only a process that calls such a store needs its package.
        from forebay.tiers.remote.stores.s3 import S3Store  # noqa: PLC0415

        return S3Store(wanted)
    if wanted.scheme == "mooncake":  # pragma: no cover - likewise
        from forebay.tiers.remote.stores.mooncake.store import MooncakeStore  # noqa: PLC0415

        return MooncakeStore(wanted, host)
    if wanted.scheme in VALKEY:
        return ValkeyStore(wanted)
    return DirectoryStore(wanted.path, host)


def require_package(url: RemoteUrl) -> None:
    """A StartupError if the package for such a store is missing; imports nothing."""
    module, package = _PACKAGES.get(url.scheme, ("", ""))
    if module and find_spec(module) is None:
        raise StartupError(
            f"{url.place} needs the package {package}; install it with: pip install {package}."
        )
