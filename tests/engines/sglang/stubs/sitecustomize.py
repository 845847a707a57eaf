"""Lets SGLang's HiCache run where there is no GPU; on the path of a test's server alone.

Three things that a CPU cannot have are made up. `sgl_kernel` and `torchvision` have compiled parts:
here they are names without contents, since a model of text does not use them. Copies between
"device" and host memory are made by torch. And host memory is not pinned, nor is as much of it kept
free as on a server. What SGLang computes, and what it asks of a storage backend, is its own.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MADE_UP = {"sgl_kernel": "0.4.10", "torchvision": "0.28.0"}


class _Kind(type):
    """A class of which everything that is asked for is there."""

    def __getattr__(cls, name: str) -> Any:
        return _Thing


class _Thing(metaclass=_Kind):
    def __init__(self, *arguments: Any, **named: Any) -> None: ...

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self


class _MadeUp(ModuleType):
    """A module that has whatever is imported from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Thing


class _Names(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that are made up."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in MADE_UP:
            return None
        return ModuleSpec(fullname, self, origin=__file__, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _MadeUp(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = MADE_UP[module.__name__.partition(".")[0]]  # type: ignore[attr-defined]


class _Changed(importlib.abc.MetaPathFinder):
    """Finds modules of SGLang of which something is changed once they are imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = CHANGES.get(fullname)
        spec = PathFinder.find_spec(fullname, path) if change else None
        if change is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def _copies(module: Any) -> None:
    """The transfers of `page_first_direct`, which torch makes by indexing."""

    def to_pages(**told: Any) -> None:
        tensors, targets, rows = told["src_ptrs"], told["dst_ptrs"], told["src_indices"]
        page, row = _places(told["dst_indices"], told["page_size"])
        layers = len(tensors) // len(targets)  # all K layers, then all V layers
        for number, tensor in enumerate(tensors):
            part, layer = divmod(number, layers)
            targets[part][page, layer, row] = tensor[rows]

    def from_pages(**told: Any) -> None:
        page, row = _places(told["src_indices"], told["page_size"])
        for pages, tensor in zip(told["src_ptrs"], told["dst_ptrs"], strict=True):
            tensor[told["dst_indices"]] = pages[page, told["layer_id"], row]

    module.transfer_kv_all_layer_direct_lf_pf = to_pages
    module.transfer_kv_per_layer_direct_pf_lf = from_pages


def _places(tokens: Any, page_size: int) -> tuple[Any, Any]:
    return tokens // page_size, tokens % page_size


def _plain_memory(module: Any) -> None:
    """Host memory as torch gives it."""
    import torch

    def allocate(dims: Any, dtype: Any, *_: Any, **__: Any) -> Any:
        return torch.empty(dims, dtype=dtype)

    module.ALLOC_MEMORY_FUNCS.default_factory = lambda: allocate


def _no_reserve(module: Any) -> None:
    """A test takes a few MiB, however little is left."""
    module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


CHANGES: dict[str, Callable[[Any], None]] = {
    "sglang.srt.mem_cache.pool_host.mha": _copies,
    "sglang.srt.mem_cache.pool_host.common": _plain_memory,
    "sglang.srt.mem_cache.pool_host.base": _no_reserve,
}
sys.meta_path[:0] = [_Names(), _Changed()]
