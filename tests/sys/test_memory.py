"""How much memory there is to be had: the least of the machine's and our cgroups'."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.sys.memory import available_memory, total_memory_bytes

MIB = 1 << 20


def machine(root: Path, cgroups: str, files: dict[str, str]) -> Path:
    """A file system with 900 MiB available, in these cgroups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1000000 kB\nMemAvailable: {900 << 10} kB\n")
    (root / "proc/self/cgroup").write_text(cgroups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_has_memory() -> None:
    assert 1 << 20 < available_memory().size_bytes <= total_memory_bytes()


def test_without_a_cgroup_the_machine_is_the_limit(tmp_path: Path) -> None:
    found = available_memory(machine(tmp_path, "0::/\n", {}))
    assert found == (900 * MIB, "this machine")
    assert available_memory(tmp_path / "nothing").size_bytes == total_memory_bytes()


def test_a_cgroup_leaves_what_is_not_used_or_can_be_dropped(tmp_path: Path) -> None:
    files = {
        "pods/pod/memory.max": "max\n",
        "pods/pod/memory.current": f"{200 * MIB}\n",
        "pods/memory.max": f"{300 * MIB}\n",
        "pods/memory.current": f"{200 * MIB}\n",
        "pods/memory.stat": f"anon 5\nactive_file {20 * MIB}\ninactive_file {30 * MIB}\n",
    }
    found = available_memory(machine(tmp_path, "0::/pods/pod\n", files))
    assert found == (150 * MIB, f"the memory limit of {tmp_path}/sys/fs/cgroup/pods")


def test_a_cgroup_of_version_1_counts_as_well(tmp_path: Path) -> None:
    files = {
        "memory/a/memory.limit_in_bytes": f"{300 * MIB}\n",
        "memory/a/memory.usage_in_bytes": f"{310 * MIB}\n",
        "memory/memory.limit_in_bytes": f"{1 << 62}\n",
        "memory/memory.usage_in_bytes": f"{500 * MIB}\n",
        "memory/a/memory.stat": f"total_inactive_file {4 * MIB}\n",
    }
    found = available_memory(machine(tmp_path, "3:cpu:/a\n4:memory:/a\n0::/\n", files))
    assert found.size_bytes == 0, "used beyond its limit, and less can be dropped"


def with_nodes(root: Path, cpuset: str, policy: str) -> Path:
    """Two nodes: 700 MiB are left of the first, and of the second 40, all but 10 of it files."""
    machine(root, "0::/\n", {})
    (root / "proc/self/status").write_text(f"Name:\tx\nMems_allowed_list:\t{cpuset}\nThreads:\t1\n")
    (root / "proc/self/numa_maps").write_text(
        f"55d0c5a00000 {policy} file=/usr/bin/python3 mapped=1 N0=1 kernelpagesize_kB=4\n"
        "7f0000000000 prefer:1 anon=1 dirty=1 N1=1 kernelpagesize_kB=4\n"
    )
    nodes = root / "sys/devices/system/node"
    for node, free, active, inactive in ((0, 700, 0, 0), (1, 10, 20, 10)):
        (nodes / f"node{node}").mkdir(parents=True)
        sizes = {"MemTotal": 800, "MemFree": free, "Active": 90, "Active(file)": active}
        lines = {**sizes, "Inactive(file)": inactive, "Shmem": 100}.items()
        (nodes / f"node{node}/meminfo").write_text(
            "".join(f"Node {node} {name}: {size << 10} kB\n" for name, size in lines)
        )
    (nodes / "has_memory").write_text("0-1\n")
    return root


@pytest.mark.parametrize(
    ("cpuset", "policy"),
    [("1", "default"), ("0-1", "bind:1"), ("0-1", "bind=static:1"), ("1", "interleave:1")],
)
def test_t49_a_full_node_is_a_limit_where_no_other_may_be_used(
    tmp_path: Path, cpuset: str, policy: str
) -> None:
    """The kernel kills whoever takes more of it, though another node has memory."""
    found = available_memory(with_nodes(tmp_path, cpuset, policy))
    assert found == (40 * MIB, "the memory of NUMA node 1")


@pytest.mark.parametrize(
    ("cpuset", "policy"),
    [
        *(("0-1", "default"), ("0,1", "prefer:1"), ("0-1", "interleave:0-1"), ("0-1", "bind:0-1")),
        *(("", "local"), ("?", ""), ("0-?", "bind:x"), ("5", "default")),
    ],
)
def test_nodes_are_no_limit_where_all_may_be_used(tmp_path: Path, cpuset: str, policy: str) -> None:
    found = available_memory(with_nodes(tmp_path, cpuset, policy))
    assert found == (900 * MIB, "this machine")


def test_nodes_that_say_nothing_are_no_limit(tmp_path: Path) -> None:
    root = with_nodes(tmp_path, "0-1", "bind:1")
    (root / "sys/devices/system/node/node1/meminfo").write_text("?\n")
    assert available_memory(root) == (900 * MIB, "this machine")
    (root / "proc/self/numa_maps").unlink()
    assert available_memory(root) == (900 * MIB, "this machine")


# Binds itself to a node by the system call of that number, and says what the kernel tells of it.
BOUND = """
import ctypes, sys
from pathlib import Path
from forebay.sys.machine import nodes
mask = ctypes.c_ulong(1)
if ctypes.CDLL(None).syscall(int(sys.argv[1]), 2, ctypes.byref(mask), 64):
    print("refused")
else:
    print(sorted(nodes._bound_to(Path("/"))))
"""
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


def test_a_policy_of_this_kernel_is_understood() -> None:
    call = SET_MEMPOLICY[platform.machine()]
    ended = subprocess.run(
        [sys.executable, "-c", BOUND, str(call)], capture_output=True, text=True, check=True
    )
    if ended.stdout == "refused\n":
        pytest.skip("this kernel has no memory nodes, or does not let us have a policy")
    assert ended.stdout == "[0]\n"
