"""Checks of host memory: enough of it, in large pages, and allowed to be locked and shared."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from forebay.engines.geometry import chunk_blocks
from forebay.observe.doctor.facts import Facts
from forebay.observe.doctor.finding import (
    Check,
    Group,
    Observation,
    Severity,
    note,
    ok,
    problem,
    skipped,
    warning,
)
from forebay.quantity import format_size
from forebay.settings import parse_numa
from forebay.sys.machine import limits, nodes
from forebay.sys.machine.gpus import gpu_addresses, node_of
from forebay.sys.machine.limits import LimitName
from forebay.sys.machine.placement import NodePlacement
from forebay.sys.memory import available_memory, total_memory_bytes
from forebay.tiers.dram.slab import cap_bytes_for, slot_bytes_for

_BESIDE_BYTES: Final = 2 << 30  # a pool's own memory, ample for several terabytes on drives
_LARGE: Final = ("always", "within_size", "force", "advise")  # a pool asks for them
_HAS_MEMORY: Final = "Not looked at, since the running pool has got its memory already."
_AWAY: Final = 10  # a note if more than this fraction of DRAM lies away from the GPU
_NEARER: Final = (
    "Lower --dram to what is left there, or name the nodes with --numa: docs/hardware.md."
)
_SHM_BYTES: Final = 1 << 30  # of /dev/shm, through which vLLM's ranks exchange messages


def _dram(facts: Facts) -> Iterator[Observation]:
    wanted_bytes = facts.settings.dram
    wanted = format_size(wanted_bytes)
    if facts.pool.stats is not None:
        yield skipped(_HAS_MEMORY)
        return
    total_bytes, left = total_memory_bytes(), available_memory(facts.root)
    if wanted_bytes > total_bytes:
        yield problem(
            f"{wanted} of DRAM are asked for and this machine has {format_size(total_bytes)}.",
            "Lower --dram.",
        )
    elif facts.settings.huge_pages:
        yield ok("DRAM comes from huge pages.")
    elif wanted_bytes > left.size_bytes:
        yield problem(
            f"{wanted} of DRAM are asked for and {left.limited_by} leaves"
            f" {format_size(left.size_bytes)}.",
            "Lower --dram, or raise the limit to --dram and 2 GiB.",
        )
    elif wanted_bytes + _BESIDE_BYTES > left.size_bytes:
        yield warning(
            f"{wanted} of DRAM leave {format_size(left.size_bytes - wanted_bytes)} of what"
            f" {left.limited_by} has left.",
            "Leave 2 GiB for the pool besides --dram, and what engines need.",
        )
    else:
        yield ok(f"{wanted} of DRAM fit: {left.limited_by} leaves {format_size(left.size_bytes)}.")


def _model(facts: Facts) -> Iterator[Observation]:
    """Whether DRAM has room for eight of the model's chunks."""
    shape = facts.inputs.model.shape if facts.inputs.model else None
    if shape is None:
        yield skipped("The size of a chunk was not looked at: give --model.")
        return
    block_tokens = facts.inputs.vllm.block_tokens if facts.inputs.vllm else 16
    block_bytes = max(1, *(shape.group_bytes(group, block_tokens) for group in shape.groups))
    wished = chunk_blocks(block_bytes, block_tokens)
    blocks = facts.settings.chunk_tokens // block_tokens or wished
    need_bytes = cap_bytes_for(slot_bytes_for(blocks * block_bytes))
    said = f"A chunk of {shape.name} has {format_size(blocks * block_bytes)}"
    if need_bytes > facts.settings.dram:
        yield problem(
            f"{said}, and {format_size(facts.settings.dram)} of DRAM hold no eight of them.",
            f"Give --dram at least {format_size(need_bytes)}.",
        )
    else:
        yield ok(f"{said}.")


def _gpu_cache(facts: Facts) -> Iterator[Observation]:
    cache_bytes = _gpu_cache_bytes(facts)
    if cache_bytes is None:
        yield skipped("DRAM was not compared with the engine's own KV cache: give --gpu-cache.")
        return
    dram_bytes = _dram_bytes(facts)
    said = f"DRAM has {format_size(dram_bytes)} and the engine's own KV cache"
    if dram_bytes < cache_bytes:
        yield warning(
            f"{said} {format_size(cache_bytes)}: most of what DRAM holds is on the GPU as well.",
            "Give --dram several times the engine's own cache, or add a --disk.",
        )
    else:
        yield ok(f"{said} {format_size(cache_bytes)}.")


def _gpu_cache_bytes(facts: Facts) -> int | None:
    """The KV cache of all ranks: as given, from vLLM's flags, or as engines told the pool."""
    if facts.inputs.gpu_cache_bytes is not None:
        return facts.inputs.gpu_cache_bytes
    flags, model = facts.inputs.vllm, facts.inputs.model
    if flags is None:
        told = [each.get("gpu_cache_bytes") for each in facts.pool.listed("engines")]
        return sum(size for size in told if isinstance(size, int)) or None
    if flags.kv_cache_bytes is not None:
        return flags.kv_cache_bytes * flags.tensor_parallel * flags.pipeline_parallel
    if flags.gpu_blocks is not None and model is not None and model.shape is not None:
        return flags.gpu_blocks * flags.block_tokens * model.shape.token_bytes
    return None


def _dram_bytes(facts: Facts) -> int:
    """The size of the running pool's DRAM, else of that in the settings."""
    for tier in facts.pool.listed("tiers"):
        if tier.get("name") == "dram" and isinstance(tier.get("cap_bytes"), int):
            return int(tier["cap_bytes"])
    return facts.settings.dram


def _huge_pages(facts: Facts) -> Iterator[Observation]:
    found, wanted_bytes = limits.huge_pages(facts.root), facts.settings.dram
    if not facts.settings.huge_pages:
        unused_bytes = found.page_bytes * found.free if found else 0
        if facts.pool.stats is None and unused_bytes >= wanted_bytes:
            yield note(
                f"{format_size(unused_bytes)} of huge pages are reserved and nobody uses them.",
                "Give --huge-pages: reads from drives take less CPU time.",
            )
        else:
            yield ok("Huge pages are not asked for.")
        return
    if facts.pool.stats is not None:
        yield skipped(_HAS_MEMORY)
        return
    if found is None:
        yield problem("This kernel has no huge pages.", "Leave --huge-pages out.")
        return
    need = -(-wanted_bytes // found.page_bytes)
    if need > found.free:
        yield problem(
            f"--huge-pages needs {need:,} pages of {format_size(found.page_bytes)} and"
            f" {found.free:,} are free of {found.total:,} reserved.",
            f"Run: sysctl vm.nr_hugepages={found.total - found.free + need}",
        )
    else:
        yield ok(f"{found.free:,} huge pages are free and {need:,} are needed.")


def _transparent(facts: Facts) -> Iterator[Observation]:
    mode = limits.shared_huge_pages(facts.root)
    if facts.settings.huge_pages or mode is None:
        yield ok("Transparent huge pages do not matter here.")
    elif mode in _LARGE:
        yield ok(f"Shared memory may have large pages ({mode}).")
    else:
        yield note(
            f"Shared memory has pages of 4 KiB (shmem_enabled is {mode}): registering it with a GPU"
            " takes longer, and each GB read more CPU time.",
            "Run, before the pool starts: echo advise >"
            " /sys/kernel/mm/transparent_hugepage/shmem_enabled; or reserve huge pages and give"
            " --huge-pages.",
        )


def _nodes(facts: Facts) -> Iterator[Observation]:
    """On which NUMA nodes DRAM lies, or would lie, and where the GPUs are."""
    every = nodes.memory_nodes(facts.root)
    wanted = NodePlacement(*parse_numa(facts.settings.numa), facts.root)
    gpus = wanted.gpus or tuple(gpu_addresses(facts.root))
    near, where = wanted.near(), _nodes_of_gpus(gpus, facts.root)
    if len(every) < 2:
        yield ok("This machine has one memory node.")
    elif facts.pool.stats is not None:
        yield _where_it_lies(facts, near, where)
    elif not wanted.is_on:
        yield ok(f"DRAM is not bound to a NUMA node, as asked.{where}")
    else:
        chosen = wanted.choose(facts.settings.dram, huge_pages=facts.settings.huge_pages)
        if chosen.refusal:
            yield problem(f"{chosen.refusal}.", "Lower --dram, or change --numa.")
        elif chosen.why and not near <= chosen.nodes:
            yield note(f"DRAM is away from the GPU: {chosen.why}.{where}", _NEARER)
        else:
            yield ok(f"DRAM will lie on {chosen.why or 'any NUMA node'}.{where}")


def _where_it_lies(facts: Facts, near: Collection[int], where: str) -> Observation:
    told = next((each for each in facts.pool.listed("tiers") if each.get("name") == "dram"), {})
    found = told.get("node_bytes")
    sizes = {int(node): n for node, n in found.items()} if isinstance(found, dict) else {}
    if not sizes:
        return skipped("The pool does not say on which NUMA nodes its DRAM lies.")
    listed = ", ".join(f"{format_size(n)} on node {node}" for node, n in sorted(sizes.items()))
    away_bytes = sum(n for node, n in sizes.items() if node not in near) if near else 0
    of_gpus = set(sizes) - nodes.cpu_nodes(facts.root)
    if of_gpus:
        return warning(
            f"DRAM lies on a NUMA node without CPUs, which may be a GPU's own memory: {listed}.",
            f"Restart the pool with --numa {nodes.list_of(near) or 'auto'}.",
        )
    if away_bytes * _AWAY > sum(sizes.values()):
        return note(f"DRAM lies away from the GPU: {listed}.{where}", _NEARER)
    return ok(f"DRAM lies near the GPU: {listed}.{where}" if near else f"DRAM: {listed}.")


def _nodes_of_gpus(addresses: Sequence[str], root: Path) -> str:
    """A further sentence on the GPUs whose node is known."""
    known = {address: node_of(address, root) for address in addresses}
    listed = [f"{address} at node {node}" for address, node in known.items() if node is not None]
    return f" GPUs: {', '.join(listed)}." if listed else ""


def _locked(facts: Facts) -> Iterator[Observation]:
    """An engine on a GPU registers all of DRAM; some systems count that as locked memory."""
    limit = limits.process_limit(LimitName.LOCKED, facts.root)
    most = limit.hard if limit else None
    if most is None or limits.may_lock_memory(facts.root) or most >= facts.settings.dram:
        yield ok("The limit of locked memory (ulimit -l) is no obstacle.")
        return
    sentence = (
        f"This process may lock {format_size(most)} of memory, and an engine registers"
        f" {format_size(facts.settings.dram)} of DRAM with its GPU."
    )
    advice = "Start engines with --ulimit memlock=-1 (systemd: LimitMEMLOCK=infinity)."
    if limits.has_nvidia_gpu(facts.root):
        yield warning(sentence, advice)
    else:
        yield note(f"{sentence[:-1]}; there is no GPU here.", advice)


def _shared(facts: Facts) -> Iterator[Observation]:
    """DRAM is one shared mapping: with a limit below its size, a pool fails to start."""
    wanted_bytes, is_fine = facts.settings.dram, True
    for name, flag in ((LimitName.ADDRESSES, "-v"), (LimitName.FILE_BYTES, "-f")):
        limit = limits.process_limit(name, facts.root)
        if limit is not None and limit.soft is not None and limit.soft < wanted_bytes:
            is_fine = False
            yield problem(
                f"A process here may have {format_size(limit.soft)} by ulimit {flag}, less than"
                f" --dram, {format_size(wanted_bytes)}.",
                f"Start the pool with: ulimit {flag} unlimited",
            )
    left_bytes = limits.uncommitted_bytes(facts.root)
    if left_bytes is not None and left_bytes < wanted_bytes and facts.pool.stats is None:
        is_fine = False
        yield problem(
            f"The kernel commits to {format_size(left_bytes)} more (vm.overcommit_memory is 2), and"
            f" {format_size(wanted_bytes)} of DRAM are asked for.",
            "Run: sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio.",
        )
    ranks = facts.inputs.vllm.tensor_parallel if facts.inputs.vllm else 1
    shm_bytes = _shm_bytes(facts)
    if ranks > 1 and shm_bytes is not None and shm_bytes < _SHM_BYTES:
        is_fine = False
        yield warning(
            f"vLLM's {ranks} ranks need more than the {format_size(shm_bytes)} of /dev/shm.",
            "Start the engine's container with --shm-size=8g or --ipc=host.",
        )
    if is_fine:
        yield ok("No limit of shared memory is below --dram.")


def _swap(facts: Facts) -> Iterator[Observation]:
    """DRAM is not encrypted, and the kernel may write it to swap, unless it has huge pages."""
    swap_bytes = limits.swap_bytes(facts.root)
    if facts.settings.encryption and swap_bytes and not facts.settings.huge_pages:
        yield warning(
            f"Records are encrypted on drives, and this machine has {format_size(swap_bytes)} of"
            " swap, to which DRAM may be written as it is.",
            "Run: swapoff -a; or encrypt the swap, or reserve huge pages and give --huge-pages.",
        )
    else:
        yield ok("No DRAM that should be encrypted can be written to swap.")


def _shm_bytes(facts: Facts) -> int | None:
    try:
        directory = facts.disk.open_directory(str(facts.root / "dev/shm"))
    except OSError:
        return None
    try:
        return facts.disk.space(directory).total_bytes
    finally:
        facts.disk.close(directory)


CHECKS: Final = (
    Check(
        "memory.dram",
        Group.MEMORY,
        "DRAM above what the machine, or the container's memory limit, has left",
        Severity.PROBLEM,
        _dram,
    ),
    Check(
        "memory.model",
        Group.MEMORY,
        "DRAM that is too small for eight chunks of the model",
        Severity.PROBLEM,
        _model,
    ),
    Check(
        "memory.gpu_cache",
        Group.MEMORY,
        "DRAM smaller than the engine's own KV cache",
        Severity.WARNING,
        _gpu_cache,
    ),
    Check(
        "memory.huge_pages",
        Group.MEMORY,
        "huge pages that are asked for and not reserved, or reserved and not asked for",
        Severity.PROBLEM,
        _huge_pages,
    ),
    Check(
        "memory.transparent_huge_pages",
        Group.MEMORY,
        "shared memory in pages of 4 KiB",
        Severity.NOTE,
        _transparent,
    ),
    Check(
        "memory.nodes",
        Group.MEMORY,
        "DRAM on other NUMA nodes than the GPUs, or on one without CPUs; nodes that cannot be had",
        Severity.PROBLEM,
        _nodes,
    ),
    Check(
        "memory.locked",
        Group.MEMORY,
        "a limit of locked memory (`ulimit -l`) below DRAM",
        Severity.WARNING,
        _locked,
    ),
    Check(
        "memory.shared",
        Group.MEMORY,
        "limits of addresses, of a file's size or of committed memory below DRAM; a small /dev/shm"
        " under several ranks",
        Severity.PROBLEM,
        _shared,
    ),
    Check(
        "memory.swap",
        Group.MEMORY,
        "swap where encryption is wanted: DRAM is not encrypted",
        Severity.WARNING,
        _swap,
    ),
)
