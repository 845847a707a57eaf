"""Every check of memory and limits finds its planted case, and nothing where there is none."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.observe.doctor.harness import (
    GIB,
    MIB,
    Machine,
    facts_of,
    finds,
    is_fine,
    is_skipped,
    look,
    on_disk,
    with_snapshot,
)
from tests.pool_process import HANG_S, PoolProcess, environment, short_directory
from tests.sys.machine.planted import plant_nodes, two_sockets

from forebay.engines.start.vllm_flags import VllmFlags
from forebay.observe.doctor.facts import DoctorModel, Facts
from forebay.observe.doctor.finding import Severity
from forebay.plan.model.shape import plain_shape
from forebay.settings import DiskSetting, Settings
from forebay.sys.disk import Disk, Space
from forebay.sys.machine import limits
from forebay.sys.machine.limits import LimitName

SMALL = Settings(dram=8 * MIB)
MODEL = DoctorModel("model", shape=plain_shape(32, 8, 128, 16))  # 128 KiB a token


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_without_limits_is_fine(machine: Machine) -> None:
    flags = VllmFlags(tensor_parallel=2)
    facts = machine.facts(settings=Settings(dram=64 * MIB), model=MODEL, vllm=flags)
    for name in ("dram", "model", "huge_pages", "transparent_huge_pages"):
        is_fine(f"memory.{name}", facts)
    for name in ("memory.locked", "memory.shared", "limits.descriptors", "limits.cpu"):
        is_fine(name, facts)
    is_fine("limits.threads", facts)
    is_skipped("memory.gpu_cache", facts)
    is_skipped("memory.model", machine.facts())


def test_more_dram_than_a_machine_has(machine: Machine) -> None:
    facts = machine.facts(settings=Settings(dram=1 << 50))
    finds("memory.dram", facts, Severity.PROBLEM, "1,024 TiB", "Lower --dram")


def test_more_dram_than_a_container_may_have(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/pod\n")
    machine.write("sys/fs/cgroup/pod/memory.max", f"{3 * GIB}\n")
    machine.write("sys/fs/cgroup/pod/memory.current", f"{GIB // 2}\n")
    is_fine("memory.dram", machine.facts(settings=Settings(dram=GIB // 2)))
    facts = machine.facts(settings=Settings(dram=GIB * 13 // 5))
    finds("memory.dram", facts, Severity.PROBLEM, "sys/fs/cgroup/pod leaves 2.5 GiB", "raise")
    facts = machine.facts(settings=Settings(dram=GIB))
    finds("memory.dram", facts, Severity.WARNING, "leave 1.5 GiB", "2 GiB for the pool")


def test_dram_that_holds_no_eight_chunks(machine: Machine) -> None:
    facts = machine.facts(settings=SMALL, model=MODEL)
    finds("memory.model", facts, Severity.PROBLEM, "4 MiB", "at least 32 MiB")


@pytest.mark.parametrize(
    "inputs",
    [
        {"gpu_cache_bytes": 60 * GIB},
        {"vllm": VllmFlags(kv_cache_bytes=30 * GIB, tensor_parallel=2)},
        {"vllm": VllmFlags(gpu_blocks=30720), "model": MODEL},
    ],
)
def test_dram_smaller_than_the_engines_own_cache(machine: Machine, inputs: dict[str, Any]) -> None:
    facts = machine.facts(settings=Settings(dram=32 * GIB), **inputs)
    finds("memory.gpu_cache", facts, Severity.WARNING, "60 GiB", "several times")
    is_fine("memory.gpu_cache", machine.facts(settings=Settings(dram=64 * GIB), **inputs))


def test_huge_pages_that_are_not_reserved(machine: Machine) -> None:
    settings = replace(SMALL, huge_pages=True)
    machine.meminfo(HugePages_Total=8, HugePages_Free=5, HugePages_Rsvd=2, Hugepagesize=2048)
    facts = machine.facts(settings=settings)
    finds("memory.huge_pages", facts, Severity.PROBLEM, "3 are free", "sysctl vm.nr_hugepages=9")
    machine.meminfo(HugePages_Total=8, HugePages_Free=4, HugePages_Rsvd=0, Hugepagesize=2048)
    is_fine("memory.huge_pages", machine.facts(settings=settings))
    finds("memory.huge_pages", machine.facts(settings=SMALL), Severity.NOTE, "nobody uses them")
    machine.meminfo()
    finds("memory.huge_pages", machine.facts(settings=settings), Severity.PROBLEM, "no huge pages")


def test_shared_memory_in_small_pages(machine: Machine) -> None:
    machine.shared_huge_pages("always within_size advise [never] deny force")
    finds("memory.transparent_huge_pages", machine.facts(), Severity.NOTE, "never", "echo advise")
    machine.shared_huge_pages("always within_size [advise] never deny force")
    is_fine("memory.transparent_huge_pages", machine.facts())
    huge = machine.facts(settings=replace(SMALL, huge_pages=True))
    is_fine("memory.transparent_huge_pages", huge)


def test_a_limit_of_locked_memory(machine: Machine) -> None:
    machine.limit("Max locked memory", 8 * MIB)
    is_fine("memory.locked", machine.facts(settings=SMALL))
    facts = machine.facts(settings=Settings(dram=GIB))
    finds("memory.locked", facts, Severity.NOTE, "no GPU here", "memlock=-1")
    machine.write("dev/nvidia0", "")
    finds("memory.locked", facts, Severity.WARNING, "may lock 8 MiB", "LimitMEMLOCK")
    machine.write("proc/self/status", "CapEff:\t0000000000004000\n")
    is_fine("memory.locked", facts)


@pytest.mark.parametrize(
    ("name", "flag"), [("Max address space", "ulimit -v"), ("Max file size", "ulimit -f")]
)
def test_a_limit_below_dram(machine: Machine, name: str, flag: str) -> None:
    machine.limit(name, GIB, "unlimited")
    is_fine("memory.shared", machine.facts(settings=SMALL))
    facts = machine.facts(settings=Settings(dram=2 * GIB))
    finds("memory.shared", facts, Severity.PROBLEM, "1 GiB", f"{flag} unlimited")


def test_a_kernel_that_commits_to_less_than_dram(machine: Machine) -> None:
    machine.write("proc/sys/vm/overcommit_memory", "2\n")
    machine.meminfo(CommitLimit=3 << 20, Committed_AS=2 << 20)
    is_fine("memory.shared", machine.facts(settings=SMALL))
    facts = machine.facts(settings=Settings(dram=2 * GIB))
    finds("memory.shared", facts, Severity.PROBLEM, "commits to 1 GiB", "overcommit_memory=0")


def test_swap_where_encryption_is_wanted(machine: Machine) -> None:
    machine.meminfo(SwapTotal=2 << 20)
    is_fine("memory.swap", machine.facts(settings=SMALL))
    settings = replace(SMALL, encryption="env:KEYS")
    facts = machine.facts(settings=settings)
    finds("memory.swap", facts, Severity.WARNING, "2 GiB of swap", "swapoff")
    is_fine("memory.swap", machine.facts(settings=replace(settings, huge_pages=True)))
    machine.meminfo(SwapTotal=0)
    is_fine("memory.swap", machine.facts(settings=settings))


class SmallShm(Disk):
    """/dev/shm as container runtimes make it."""

    def space(self, directory: int) -> Space:
        return Space(64 * MIB, 64 * MIB)


def test_a_small_dev_shm_under_several_ranks(machine: Machine) -> None:
    (machine.root / "dev/shm").mkdir(parents=True)
    facts = machine.facts(settings=SMALL, disk=SmallShm(), vllm=VllmFlags(tensor_parallel=4))
    finds("memory.shared", facts, Severity.WARNING, "4 ranks", "64 MiB", "--shm-size")
    is_fine("memory.shared", machine.facts(settings=SMALL, disk=SmallShm(), vllm=VllmFlags()))


def test_fewer_descriptors_than_regions(machine: Machine, tmp_path: Path) -> None:
    machine.limit("Max open files", 1024, 4096)
    settings = on_disk(tmp_path / "disk", cap_bytes=2000 * GIB)
    facts = machine.facts(settings=settings)
    finds("limits.descriptors", facts, Severity.PROBLEM, "8,511", "4,096", "ulimit -Hn 8511")
    is_fine("limits.descriptors", machine.facts(settings=on_disk(tmp_path / "disk")))


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/pod\n", {"pod/cpu.max": "50000 100000\n"}),
        ("0::/pod/c\n", {"pod/cpu.max": "50000 100000\n", "pod/c/cpu.max": "max 100000\n"}),
        (
            "3:cpu,cpuacct:/pod\n",
            {
                "cpu,cpuacct/pod/cpu.cfs_quota_us": "50000\n",
                "cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
            },
        ),
    ],
)
def test_a_container_with_half_a_core(machine: Machine, cgroup: str, files: dict[str, str]) -> None:
    machine.write("proc/self/cgroup", cgroup)
    is_fine("limits.cpu", machine.facts())
    for name, text in files.items():
        machine.write(f"sys/fs/cgroup/{name}", text)
    finds("limits.cpu", machine.facts(), Severity.WARNING, "0.5 cores", "CPU limit of 2")


def test_a_container_with_few_threads(machine: Machine) -> None:
    disk = tuple(DiskSetting(f"/mnt/{n}", 64 * MIB) for n in range(2))
    settings = Settings(disk=disk)
    machine.write("sys/fs/cgroup/pids.max", "100\n")
    machine.write("sys/fs/cgroup/pids.current", "44\n")
    is_fine("limits.threads", machine.facts(settings=settings))
    machine.write("sys/fs/cgroup/pids.current", "45\n")
    facts = machine.facts(settings=settings)
    finds("limits.threads", facts, Severity.WARNING, "allows 100", "--pids-limit")


def test_limits_of_a_real_process_are_found(tmp_path: Path) -> None:
    """`ulimit` of the shell that the doctor is started from; the kernel writes the files."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 300))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 * MIB, 100 * MIB))

    command = [sys.executable, "-m", "forebay.cli", "doctor", "--json", "--dram", "1GiB"]
    command += ["--no-measure", "--socket", str(tmp_path / "pool.sock")]
    ended = subprocess.run(
        command,
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        env=environment(),
    )
    assert ended.returncode == 1, ended.stderr
    findings = json.loads(ended.stdout)["findings"]
    bad = {each["check"]: each["sentence"] for each in findings if each["severity"] == "problem"}
    assert "may have 300" in bad["limits.descriptors"]
    assert "100 MiB by ulimit -f" in bad["memory.shared"]


def test_limits_of_a_running_pool_are_its_own() -> None:
    """Not those of the process that the doctor runs in."""
    with short_directory() as place:
        pool = PoolProcess(place, disk=False)
        pool.command = ["bash", "-c", 'ulimit -n 400 && exec "$@"', "bash", *pool.command]
        pool.start()
        try:
            facts = facts_of(place)
            finds("limits.descriptors", facts, Severity.PROBLEM, "may have 400")
            assert facts.pool_process == pool.pid
        finally:
            pool.kill()


def test_the_kernels_own_files_can_be_read() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits.process_limit(LimitName.DESCRIPTORS) == (soft, hard)
    for name in LimitName:
        assert limits.process_limit(name) is not None, name


def told(machine: Machine, **nodes: int) -> Facts:
    """A pool has so much on each node, in GiB."""
    sizes = {name[1:]: gib * GIB for name, gib in nodes.items()}
    return with_snapshot(machine.facts(), tiers=[{"name": "dram", "node_bytes": sizes}])


def test_dram_on_nodes_away_from_the_gpu(machine: Machine) -> None:
    is_fine("memory.nodes", machine.facts())
    two_sockets(machine.root, (16 << 10, 2 << 10))
    assert "node 1, near the GPU. GPUs: 0000:3b:00.0 at node 1." in sentence(
        machine.facts(settings=Settings(dram=GIB))
    )
    facts = machine.facts(settings=Settings(dram=3 * GIB))
    finds("memory.nodes", facts, Severity.NOTE, "not all of it fits on NUMA node 1", "--numa")
    assert "as asked" in sentence(machine.facts(settings=Settings(numa="off")))
    facts = machine.facts(settings=Settings(dram=3 * GIB, numa="1"))
    finds("memory.nodes", facts, Severity.PROBLEM, "NUMA node 1 leaves 2 GiB", "Lower --dram")
    facts = machine.facts(settings=Settings(numa="7"))
    finds("memory.nodes", facts, Severity.PROBLEM, "node 7 has no memory", "change --numa")


def test_where_a_running_pool_has_its_dram(machine: Machine) -> None:
    is_fine("memory.nodes", told(machine, n0=4))
    two_sockets(machine.root)
    assert sentence(told(machine, n1=4)).startswith("DRAM lies near the GPU: 4 GiB on node 1.")
    is_fine("memory.nodes", told(machine, n0=1, n1=9))
    finds("memory.nodes", told(machine, n0=2, n1=9), Severity.NOTE, "2 GiB on node 0, 9 GiB")
    is_skipped("memory.nodes", told(machine))
    plant_nodes(machine.root, {0: 1, 1: 1}, "1")
    finds("memory.nodes", told(machine, n0=2, n1=9), Severity.WARNING, "without CPUs", "--numa 1")


def sentence(facts: Facts) -> str:
    found = look("memory.nodes", facts)
    assert [each.severity for each in found] == [Severity.OK], found
    return found[0].sentence
