"""Memory is taken near the GPU where there is room, and never from a GPU's own."""

from pathlib import Path
from typing import Any

import pytest
from tests.sys.machine.planted import (
    GPU,
    MIB,
    NODES,
    OTHER_GPU,
    plant_gpu,
    plant_nodes,
    two_sockets,
    write,
)

from forebay.sys.machine.placement import ChosenNodes, NodePlacement


def chosen(root: Path, mib: int = 50, *, huge_pages: bool = False, **wanted: Any) -> ChosenNodes:
    return NodePlacement(root=root, **wanted).choose(mib * MIB, huge_pages=huge_pages)


def test_memory_is_near_the_gpu(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    assert chosen(tmp_path) == ChosenNodes(frozenset({1}), "NUMA node 1, near the GPU")
    assert NodePlacement(is_on=False, root=tmp_path).choose(MIB) == ChosenNodes()


def test_an_engines_gpus_count_and_not_those_of_others(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    plant_gpu(tmp_path, OTHER_GPU, 0)
    assert chosen(tmp_path) == ChosenNodes(), "GPUs at all nodes: nothing is nearer"
    assert chosen(tmp_path, gpus=(OTHER_GPU,)).nodes == {0}
    assert chosen(tmp_path, gpus=(GPU,)).nodes == {1}


def test_what_does_not_fit_near_the_gpu_is_taken_anywhere_and_said(tmp_path: Path) -> None:
    two_sockets(tmp_path, (100, 40))
    assert chosen(tmp_path, 37).nodes == {1}
    found = chosen(tmp_path, 38)  # too little would be left for others
    assert (found.nodes, found.refusal) == (frozenset(), "")
    assert found.why == "not all of it fits on NUMA node 1, near the GPU"


@pytest.mark.parametrize("node", [0, 1, 2])
def test_memory_of_a_gpu_is_never_chosen(tmp_path: Path, node: int) -> None:
    """Grace: nodes 1 and 2 are the memory of GPUs, wherever their driver says that these are."""
    plant_nodes(tmp_path, {0: 60, 1: 1000, 2: 1000}, "0")
    plant_gpu(tmp_path, GPU, node)
    assert chosen(tmp_path).nodes == {0}
    assert chosen(tmp_path, 61).refusal == (
        "61 MiB of DRAM are asked for and the memory of NUMA node 0 leaves 60 MiB"
    )


def test_memory_of_a_gpu_is_never_chosen_where_no_gpu_is_known(tmp_path: Path) -> None:
    plant_nodes(tmp_path, {0: 60, 1: 1000}, "0")
    assert chosen(tmp_path) == ChosenNodes(frozenset({0}), "NUMA node 0, all that have CPUs")
    assert "leaves 60 MiB" in chosen(tmp_path, 61).refusal
    assert not chosen(tmp_path, 56).refusal
    assert chosen(tmp_path, 57).refusal.endswith("leaves 60 MiB, of which 3.6 MiB are for others")


def test_two_superchips_have_their_memory_each_and_share_it_where_one_has_too_little(
    tmp_path: Path,
) -> None:
    plant_nodes(tmp_path, {0: 60, 1: 60, 2: 1000, 10: 1000}, "0-1")
    plant_gpu(tmp_path, GPU, 10)
    assert chosen(tmp_path).nodes == {1}, "the shortest way from node 10"
    found = chosen(tmp_path, 100)
    assert found == ChosenNodes(
        frozenset({0, 1}), "not all of it fits on NUMA node 1, near the GPU"
    )


def test_nodes_that_were_named_are_taken_or_refused(tmp_path: Path) -> None:
    plant_nodes(tmp_path, {0: 60, 1: 60, 2: 1000}, "0-1")
    write(tmp_path, "proc/self/status", "Mems_allowed_list:\t1-2\n")
    assert chosen(tmp_path, nodes=(1,)) == ChosenNodes(frozenset({1}), "NUMA node 1, as asked")
    refusals = {
        (0, 1): "NUMA node 0 may not be used by this process; change --numa",
        (2,): "NUMA node 2 has no CPUs: it may be a GPU's own memory; change --numa",
        (1, 7): "NUMA node 7 has no memory; change --numa",
    }
    for nodes, refusal in refusals.items():
        assert chosen(tmp_path, nodes=nodes) == ChosenNodes(refusal=refusal)
    assert "the memory of NUMA node 1 leaves 60 MiB" in chosen(tmp_path, 61, nodes=(1,)).refusal
    assert "are for others" in chosen(tmp_path, 57, nodes=(1,)).refusal


def test_a_process_that_may_not_use_what_is_near_takes_what_it_may(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    write(tmp_path, "proc/self/status", "Mems_allowed_list:\t0\n")
    assert chosen(tmp_path).nodes == {0}
    assert chosen(tmp_path, gpus=("0000:00:00.0",)).nodes == {0}, "a GPU of which nothing is known"


def test_an_operator_who_gives_a_process_nothing_else_has_meant_it(tmp_path: Path) -> None:
    plant_nodes(tmp_path, {0: 60, 1: 1000}, "0")
    write(tmp_path, "proc/self/status", "Mems_allowed_list:\t1\n")
    assert chosen(tmp_path) == ChosenNodes()


def test_one_node_or_none_leaves_nothing_to_choose(tmp_path: Path) -> None:
    assert chosen(tmp_path) == ChosenNodes()
    plant_nodes(tmp_path, {0: 10}, "0")
    plant_gpu(tmp_path, GPU, -1)
    assert chosen(tmp_path) == ChosenNodes()
    plant_gpu(tmp_path, GPU, 0)
    assert chosen(tmp_path) == ChosenNodes(), "that it does not fit is found elsewhere"


def test_nodes_that_do_not_say_what_they_have_are_no_limit(tmp_path: Path) -> None:
    two_sockets(tmp_path)
    write(tmp_path, f"{NODES}/node1/meminfo", "?\n")
    assert chosen(tmp_path, 1 << 20).nodes == {1}
    write(tmp_path, f"{NODES}/node1/distance", "?\n")
    assert chosen(tmp_path).nodes == {1}


def test_huge_pages_are_counted_as_such(tmp_path: Path) -> None:
    two_sockets(tmp_path, (100, 0))
    pages = f"{NODES}/node1/hugepages/hugepages-2048kB/free_hugepages"
    write(tmp_path, pages, "25\n")
    assert chosen(tmp_path, 50, huge_pages=True).nodes == {1}
    assert chosen(tmp_path, 51, huge_pages=True).nodes == frozenset()
    write(tmp_path, pages, "?\n")
    assert chosen(tmp_path, 51, huge_pages=True).nodes == {1}


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [
        *(("default", {1}), ("local", {1}), ("bind:0", {0}), ("bind=static:0-1", {1})),
        *(("interleave:0-1", set()), ("prefer:0", set()), ("weighted interleave:0-1", set())),
    ],
)
def test_a_policy_of_the_process_comes_first(tmp_path: Path, policy: str, nodes: set[int]) -> None:
    """An operator who has pools interleave their memory has a reason for it."""
    two_sockets(tmp_path)
    write(tmp_path, "proc/self/numa_maps", f"55d0c5a00000 {policy} file=/usr/bin/python3 N0=1\n")
    assert chosen(tmp_path).nodes == nodes
    if "bind" not in policy:
        assert chosen(tmp_path, nodes=(0,)).nodes == {0}, "what is named holds all the same"
