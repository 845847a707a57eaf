"""Notices that SGLang changes weights in memory, which it does not tell a backend.

After such a change the hash of the weights' files says nothing about the KV. SGLang's model runner
changes weights through the methods of one class. From the first call of `watch` on, these methods
also note that they were called: in the class itself, so that a backend that is attached later knows
it too. Otherwise they do and return what they did before.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

_UPDATES: Final = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)
_MARK: Final = "forebay_has_changed_weights"


def watch(updater: type | None) -> bool:
    """Note changes by this class from now on; False if it lacks a method that is expected."""
    if updater is None or not all(callable(getattr(updater, name, None)) for name in _UPDATES):
        return False
    if not hasattr(updater, _MARK):
        for name in _UPDATES:
            setattr(updater, name, _noting(updater, getattr(updater, name)))
        setattr(updater, _MARK, False)
    return True


def have_changed(updater: type) -> bool:
    """Whether weights were changed, or a change was begun, since `watch` was first called."""
    return bool(getattr(updater, _MARK, False))


def _noting(updater: type, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(self: Any, *arguments: Any, **named: Any) -> Any:
        setattr(updater, _MARK, True)  # set first: a page may be computed as soon as it is done
        return method(self, *arguments, **named)

    return noted
