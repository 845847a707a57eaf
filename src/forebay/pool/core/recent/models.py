"""The model of each namespace, as told by the engines that use it.

An engine names one namespace, its own, and is believed once it has looked up or stored something
there. The first name stays while an engine that gave it is here; a name that nobody uses stays too,
until another engine gives another one or `MODELS_MAX` other namespaces were used later. Names are
kept in memory alone: after a restart of the pool they come back with the engines.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

MODELS_MAX: Final = 1024  # namespaces whose model is remembered
_ENGINES_MAX: Final = 1024  # engines remembered; as many as can be connected


@dataclass(slots=True)
class _ModelName:
    model: str
    users: set[str] = field(default_factory=set)  # engines that said so and use the namespace


class ModelNames:
    """Model names by namespace. Owned by the pool's thread."""

    def __init__(self) -> None:
        # Engine → (namespace, model) as described; the least recently used first.
        self._claims: OrderedDict[str, tuple[bytes, str]] = OrderedDict()
        self._used: OrderedDict[str, bytes] = OrderedDict()  # engine → namespace that it last used
        self._names: OrderedDict[bytes, _ModelName] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._names)

    def described(self, engine: str, namespace: bytes, model: str) -> None:
        """An engine says which namespace and model it serves."""
        if self._claims.get(engine) == (namespace, model):
            return
        self._take_back(engine)
        if namespace and model:
            self._claims[engine] = (namespace, model)
            if len(self._claims) > _ENGINES_MAX:
                self._take_back(next(iter(self._claims)))
        if self._used.get(engine) == namespace:  # a lookup may overtake the description
            self.used(engine, namespace)

    def used(self, engine: str, namespace: bytes) -> None:
        """An engine has looked up or stored something in a namespace."""
        self._used[engine] = namespace
        self._used.move_to_end(engine)
        if len(self._used) > _ENGINES_MAX:
            self._used.popitem(last=False)
        claim = self._claims.get(engine)
        if claim is None or claim[0] != namespace:
            return
        self._claims.move_to_end(engine)
        name = self._names.get(namespace)
        if name is None or (not name.users and name.model != claim[1]):
            name = self._names[namespace] = _ModelName(claim[1])
        self._names.move_to_end(namespace)
        if name.model == claim[1]:
            name.users.add(engine)
        if len(self._names) > MODELS_MAX:
            self._names.popitem(last=False)

    def left(self, engine: str) -> None:
        """An engine has gone: others may rename its namespace."""
        self._used.pop(engine, None)
        self._take_back(engine)

    def _take_back(self, engine: str) -> None:
        claim = self._claims.pop(engine, None)
        name = self._names.get(claim[0]) if claim is not None else None
        if name is not None:
            name.users.discard(engine)

    def get(self, namespace: bytes) -> str:
        """The model of a namespace; "" if not known."""
        name = self._names.get(namespace)
        return "" if name is None else name.model
