"""How much memory there is to be had: the least of the machine's and our cgroups'."""

from pathlib import Path

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
