"""vLLM's plugin: it names the connector, and keeps no vLLM from starting."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from forebay.engines.start import plugin

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"


class Factory:
    """As vLLM's is from 0.26 to 0.32."""

    def __init__(self) -> None:
        self._registry: dict[str, tuple[str, str]] = {}

    def register_connector(self, name: str, module: str, kind: str) -> None:
        if name in self._registry:
            raise ValueError(name)
        self._registry[name] = (module, kind)


def has_factory(monkeypatch: pytest.MonkeyPatch, factory: Any) -> None:
    """A vLLM whose factory this is."""
    names = FACTORY.split(".")
    for length in range(1, len(names) + 1):
        name = ".".join(names[:length])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[FACTORY], "KVConnectorFactory", factory, raising=False)


def test_the_connector_is_known_by_its_name_however_often_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factory = Factory()
    has_factory(monkeypatch, factory)
    plugin.register()
    plugin.register()
    assert factory._registry == {plugin.CONNECTOR: (plugin.MODULE, plugin.CONNECTOR)}


@pytest.mark.parametrize("factory", [SimpleNamespace(), SimpleNamespace(_registry=None)])
def test_a_factory_of_another_shape_does_not_keep_vllm_from_starting(
    monkeypatch: pytest.MonkeyPatch, factory: Any
) -> None:
    """vLLM calls a plugin unprotected, in engines too that have nothing to do with us."""
    has_factory(monkeypatch, factory)
    plugin.register()
