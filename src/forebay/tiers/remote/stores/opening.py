"""Which store a URL means."""

from forebay.tiers.remote.store import ObjectStore
from forebay.tiers.remote.stores.directory import DirectoryStore
from forebay.urls import parse_url


def open_store(url: str, host: str) -> ObjectStore:
    """The store of a URL; nothing is touched before its first call."""
    return DirectoryStore(parse_url(url).path, host)
