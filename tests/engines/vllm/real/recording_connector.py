"""Forebay's connector, which also records the bytes of every page that it stores or loads.

It reads pages through vLLM's own tensors, not through Forebay's copies, and names a block by vLLM's
own chained hash of its tokens, its block table and the rank, not by Forebay's keys. Each line of
the file RECORDED_PAGES is "stored" or "loaded", that name, and a digest of the block's pages in all
layers that have that block table.
It can also kill the pool at a named point of a request's life, and disturb a rank at one: a file
beside RECORDED_PAGES says which, where, and how.
"""

import hashlib
import math
import os
import signal
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from tests.engines.vllm.real.engine_process import DISTURBED, STEP_WAIT_S, be_patient

from forebay.engines.geometry import ReachKind, ShardPlaces
from forebay.engines.vllm.connector import ForebayConnector
from forebay.engines.vllm.metadata import StepMetadata
from forebay.engines.vllm.versions import kept_states


@dataclass
class Kill:
    """A process to be killed, or stopped, when a point is passed."""

    point: str
    pid: int
    stops: bool = False


KILL: Kill | None = None  # until it has happened
PREEMPTIONS = 0
LOUD = 0x41  # four of them are a float of 12


def passing(point: str) -> None:
    """One of the points at which the pool may be killed; it has ended when this returns."""
    global KILL  # noqa: PLW0603 - one engine a process
    if KILL is None or KILL.point != point:
        return
    os.kill(KILL.pid, signal.SIGSTOP if KILL.stops else signal.SIGKILL)
    while not _has_ended(KILL.pid, states="T" if KILL.stops else "ZX"):
        time.sleep(0.001)
    KILL = None


def _has_ended(pid: int, states: str) -> bool:
    """Whether a process is gone, or in one of these states."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in states
    except OSError:
        return True


@dataclass(slots=True)
class NamedStep(StepMetadata):
    """A step that says which tokens its blocks hold."""

    stored: dict[int, str] = field(default_factory=dict)
    loaded: dict[int, str] = field(default_factory=dict)


class RecordingConnector(ForebayConnector):
    """See above."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        if STEP_WAIT_S in os.environ:
            be_patient()
        super().__init__(vllm_config, role, kv_cache_config)
        self._names: dict[int, str] = {}  # block → hash of what it holds
        self._tensors: dict[str, Any] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        answer = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if answer[0] is None:
            passing("asked")
        elif answer[0]:
            passing("promised")
        return answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            passing("allocated")

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        global PREEMPTIONS  # noqa: PLW0603 - likewise
        PREEMPTIONS += len(scheduler_output.preempted_req_ids or ())
        offered = len(self._scheduler._stores._batches) if self._scheduler else 0
        step: StepMetadata = super().build_connector_meta(scheduler_output)
        if self._scheduler is None:
            return step
        named = {each.name: getattr(step, each.name) for each in fields(StepMetadata)}
        told = NamedStep(**named)
        # What is stored was computed before this step gave blocks away.
        told.stored = self._named([store.piece for store in step.stores])
        self._name_states(kept_states(scheduler_output))
        for tracked in self._scheduler._requests.values():
            self._name(tracked)
        told.loaded = self._named([piece for load in step.loads for piece in load.pieces])
        if step.loads:
            passing("load told")
        if step.stores:
            passing("store told")
        if len(self._scheduler._stores._batches) > offered:
            passing("offered")
        return told

    def update_connector_output(self, connector_output: Any) -> None:
        if connector_output.finished_recving:
            passing("load reported")
        report = getattr(connector_output, "kv_connector_worker_meta", None)
        if report is not None and report.stored:
            passing("store reported")
        super().update_connector_output(connector_output)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._tensors = dict(sorted(kv_caches.items()))

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if isinstance(kv_connector_metadata, NamedStep):
            self._write("stored", kv_connector_metadata.stored)
            if kv_connector_metadata.stored:
                passing("before store")
                self._disturb("before store")
        super().handle_preemptions(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        begins = isinstance(step, NamedStep) and bool(step.loads)
        if begins:
            passing("before load")
            self._disturb("before load")
        super().start_load_kv(forward_context, **kwargs)
        if begins:
            passing("after load")
            # What a rank has said that it could not load, vLLM computes: nothing was loaded there.
            worker: Any = self._worker
            failed = worker._failed_blocks
            blocks = {block: name for block, name in step.loaded.items() if block not in failed}
            self._write("loaded", blocks)

    def _disturb(self, point: str) -> None:
        """Do to this rank what is wanted at this point; once."""
        wanted = Path(os.environ["RECORDED_PAGES"] + DISTURBED)
        rank = str(self._vllm_config.parallel_config.rank)
        if not wanted.exists() or wanted.read_text().split(",")[:2] != [rank, point]:
            return
        how, _, group = wanted.read_text().split(",")[2].partition(" ")
        wanted.unlink()
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "spoil":
            self._spoil(int(group or -1))
        else:
            time.sleep(float(how))

    def _spoil(self, group: int) -> None:
        """What this step loads lies wrong in this rank's shard, but right in the others'.

        Of one group only, unless that is -1.
        """
        worker: Any = self._worker
        step: Any = self._get_connector_metadata()
        slab, shape = worker._copies._slab, worker._shape
        for piece in (piece for load in step.loads for piece in load.pieces):
            if group in (-1, piece.group):
                start, size, _ = ShardPlaces(shape, slab.shard, slab.widest).shard_of(piece)
                slab.memory[start : start + size] = LOUD

    def _name(self, tracked: Any) -> None:
        """Learn what the blocks of a request hold, those of them that it has."""
        hashes, progress = tracked.request.block_hashes, tracked.load.progress
        tables = tracked.tables if progress is None else progress.target.tables
        sizes = [group.kv_cache_spec.block_size for group in self._cache.kv_cache_groups]
        for shape in self._shape.groups:
            # What lies further back may be another request's by now.
            computed = tracked.request.num_computed_tokens if progress is None else 0
            first = shape.reach.start(computed) // shape.block_tokens
            if shape.reach.kind is ReachKind.STATE and progress is None:
                continue  # its tables are no lists of what was computed
            of_hashes = shape.block_tokens // math.gcd(*sizes)
            for table in shape.tables:
                for number, block in list(enumerate(tables[table]))[first:]:
                    if block and (number + 1) * of_hashes <= len(hashes):
                        name = hashes[(number + 1) * of_hashes - 1].hex()
                        self._names[block] = f"{name}.{table}"

    def _name_states(self, kept: dict[str, list[tuple[int, int, int]]]) -> None:
        """Learn which states this step leaves in which blocks."""
        requests: Any = self._scheduler._requests if self._scheduler is not None else {}
        sizes = [group.kv_cache_spec.block_size for group in self._cache.kv_cache_groups]
        for request_id, handed in kept.items():
            for table, block, tokens in handed if request_id in requests else ():
                hashes = requests[request_id].request.block_hashes
                name = hashes[tokens // math.gcd(*sizes) - 1].hex()
                self._names[block] = f"{name}.{table}"

    def _named(self, pieces: Any) -> dict[int, str]:
        blocks = (block for piece in pieces for ids in piece.tables for block in ids)
        return {block: self._names[block] for block in blocks}

    def _write(self, what: str, blocks: dict[int, str]) -> None:
        rank = self._vllm_config.parallel_config.rank
        lines = [
            f"{what} {name}.{rank} {self._digest(block, int(name.rpartition('.')[2]))}\n"
            for block, name in blocks.items()
        ]
        with Path(os.environ["RECORDED_PAGES"]).open("ab", buffering=0) as file:
            file.write("".join(lines).encode())  # at once: other ranks write here too

    def _digest(self, block: int, table: int) -> str:
        digest = hashlib.sha256()
        for layer in sorted(self._cache.kv_cache_groups[table].layer_names):
            found = self._tensors[layer]
            for tensor in found if isinstance(found, list | tuple) else [found]:
                parts = tensor.shape[0] // self._cache.num_blocks
                pages = tensor[block * parts : (block + 1) * parts].contiguous()
                digest.update(pages.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
