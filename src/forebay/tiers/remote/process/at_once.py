"""Several calls of a store at once, so that what reads many objects does not wait for each."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

CALLS_AT_ONCE: Final = 8
_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")


def at_once(call: Callable[[_Item], _Outcome], items: Sequence[_Item]) -> list[_Outcome]:
    """What a call says of each item, in their order; a few calls are under way at a time."""
    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        return list(threads.map(call, items))
