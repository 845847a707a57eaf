"""Runs several calls of a store at the same time, so that reading many objects is fast."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

CALLS_AT_ONCE: Final = 8
_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


def at_once(call: Callable[[_Item], _Outcome], items: Sequence[_Item]) -> list[_Outcome]:
    """The results of a call for each item, in their order; a few calls run at the same time."""
    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        return list(threads.map(call, items))
