"""Chooses the memory nodes that a slab is taken from.

They are near the GPUs whose engines copy from it, if these are known and have that much memory
left; otherwise the kernel chooses, as it does if the pool was started with a policy that prefers or
interleaves nodes (`numactl`). But never a node without CPUs: on machines whose GPUs share their
addresses with the CPUs (Grace), such a node is a GPU's own memory, so memory that cannot be bound
is refused there. Nodes that an operator named are used, or the start fails.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from forebay.quantity import format_size
from forebay.sys.machine import gpus as of_pci
from forebay.sys.machine import nodes as of_machine

_SPARE: Final = 16  # one part in 16 must be left over, since others take memory as well


class ChosenNodes(NamedTuple):
    """The nodes to take memory of one size from."""

    nodes: frozenset[int] = frozenset()  # empty: the kernel chooses
    why: str = ""  # the reason, if worth saying, without a full stop
    refusal: str = ""  # why memory is refused, likewise; "": it is not


@dataclass(frozen=True, slots=True)
class NodePlacement:
    """The wanted placement: by default near all GPUs of this machine."""

    is_on: bool = True
    nodes: tuple[int, ...] = ()  # named by an operator
    gpus: tuple[str, ...] = ()  # PCI addresses; none: all
    root: Path = Path("/")  # contains `proc` and `sys`

    def choose(self, size_bytes: int, *, huge_pages: bool = False) -> ChosenNodes:
        """The nodes for so many more bytes."""
        if not self.is_on:
            return ChosenNodes()
        if self.nodes:
            return self._named(size_bytes, huge_pages=huge_pages)
        if of_machine.has_wishes(self.root):
            return ChosenNodes()
        every, usable = of_machine.memory_nodes(self.root), of_machine.allowed_nodes(self.root)
        with_cpus = usable & of_machine.cpu_nodes(self.root)
        near = self.near() & with_cpus
        where = f"NUMA node {of_machine.list_of(near)}, near the GPU"
        if near and near != every:
            if not self._lack(near, size_bytes, huge_pages=huge_pages):
                return ChosenNodes(near, where)
        else:
            near = frozenset()
        away = f"not all of it fits on {where}" if near else ""
        if not with_cpus or with_cpus == every:
            return ChosenNodes(why=away)
        lack = self._lack(with_cpus, size_bytes, huge_pages=huge_pages)
        if lack:
            return ChosenNodes(refusal=lack)
        listed = of_machine.list_of(with_cpus)
        return ChosenNodes(with_cpus, away or f"NUMA node {listed}, all that have CPUs")

    def must_bind(self) -> bool:
        """Whether the kernel may not choose: nodes are named, or some may belong to a GPU."""
        without_cpus = of_machine.allowed_nodes(self.root) - of_machine.cpu_nodes(self.root)
        return bool(self.nodes or without_cpus)

    def near(self) -> frozenset[int]:
        """The nodes with CPUs that the GPUs are on, or nearest to."""
        with_memory = of_machine.memory_nodes(self.root) & of_machine.cpu_nodes(self.root)
        addresses = self.gpus or of_pci.gpu_addresses(self.root)
        found: set[int] = set()
        for node in of_pci.nodes_of(addresses, self.root):
            found |= of_machine.nearest(node, with_memory, self.root)
        return frozenset(found)

    def _named(self, size_bytes: int, *, huge_pages: bool) -> ChosenNodes:
        wanted = frozenset(self.nodes)
        rules = (
            (of_machine.memory_nodes(self.root), "has no memory"),
            (of_machine.cpu_nodes(self.root), "has no CPUs: it may be a GPU's own memory"),
            (of_machine.allowed_nodes(self.root), "may not be used by this process"),
        )
        for allowed, why in rules:
            if wanted - allowed:
                which = of_machine.list_of(wanted - allowed)
                return ChosenNodes(refusal=f"NUMA node {which} {why}; change --numa")
        lack = self._lack(wanted, size_bytes, huge_pages=huge_pages)
        if lack:
            return ChosenNodes(refusal=lack)
        return ChosenNodes(wanted, f"NUMA node {of_machine.list_of(wanted)}, as asked")

    def _lack(self, nodes: Collection[int], size_bytes: int, *, huge_pages: bool) -> str:
        """Why these nodes cannot give so much, or "". If they ran out, the kernel would kill us."""
        left = of_machine.huge_bytes_left if huge_pages else of_machine.bytes_left
        left_bytes = left(nodes, self.root)
        spare_bytes = 0 if huge_pages else size_bytes // _SPARE
        if left_bytes is None or size_bytes + spare_bytes <= left_bytes:
            return ""
        is_close = size_bytes <= left_bytes
        others = f", of which {format_size(spare_bytes)} are for others" if is_close else ""
        return (
            f"{format_size(size_bytes)} of DRAM are asked for and the memory of NUMA node"
            f" {of_machine.list_of(nodes)} leaves {format_size(left_bytes)}{others}"
        )


ANYWHERE: Final = NodePlacement(is_on=False)
