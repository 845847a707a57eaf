"""Forebay's connector, which also records the bytes of every page that it stores or loads.

It reads pages through vLLM's own tensors, not through Forebay's copies, and names a block by vLLM's
own chained hash of its tokens and by the rank, not by Forebay's keys. Each line of the file
RECORDED_PAGES is "stored" or "loaded", that name, and a digest of the block's pages in all layers.
It can also kill the pool at a named point of a request's life, and disturb a rank at one: a file
beside RECORDED_PAGES says which, where, and how.
"""

import hashlib
import os
import signal
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from tests.engines.vllm.real.engine_process import DISTURBED

from forebay.engines.vllm.connector import ForebayConnector
from forebay.engines.vllm.metadata import StepMetadata


@dataclass
class Kill:
    """A process to be killed when a point is passed."""

    point: str
    pid: int


KILL: Kill | None = None  # until it has happened
PREEMPTIONS = 0
LOUD = 0x41  # four of them are a float of 12


def passing(point: str) -> None:
    """One of the points at which the pool may be killed; it has ended when this returns."""
    global KILL  # noqa: PLW0603 - one engine a process
    if KILL is None or KILL.point != point:
        return
    os.kill(KILL.pid, signal.SIGKILL)
    while not _has_ended(KILL.pid):
        time.sleep(0.001)
    KILL = None


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to hear of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
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
        told.stored = self._named(block for s in step.stores for block in s.piece.blocks)
        for tracked in self._scheduler._requests.values():
            request: Any = tracked.request
            hashes = [each.hex() for each in request.block_hashes]
            progress = tracked.load.progress
            blocks = tracked.blocks if progress is None else progress.blocks
            self._names.update(zip(blocks, hashes, strict=False))
        pieces = [piece for load in step.loads for piece in load.pieces]
        told.loaded = self._named(block for piece in pieces for block in piece.blocks)
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
            self._write("loaded", step.loaded)

    def _disturb(self, point: str) -> None:
        """Do to this rank what is wanted at this point; once."""
        wanted = Path(os.environ["RECORDED_PAGES"] + DISTURBED)
        rank = str(self._vllm_config.parallel_config.rank)
        if not wanted.exists() or wanted.read_text().split(",")[:2] != [rank, point]:
            return
        how = wanted.read_text().split(",")[2]
        wanted.unlink()
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "spoil":
            self._spoil()
        else:
            time.sleep(float(how))

    def _spoil(self) -> None:
        """What this step loads lies wrong in this rank's shard, but right in the others'."""
        worker: Any = self._worker
        step: Any = self._get_connector_metadata()
        memory, size = worker._copies._slab.shards, worker._shape.block_bytes
        for load in step.loads:
            for piece in load.pieces:
                start = piece.offset + piece.first * size
                memory[start : start + len(piece.blocks) * size] = LOUD

    def _named(self, blocks: Any) -> dict[int, str]:
        return {block: self._names[block] for block in blocks}

    def _write(self, what: str, blocks: dict[int, str]) -> None:
        rank = self._vllm_config.parallel_config.rank
        lines = [f"{what} {name}.{rank} {self._digest(block)}\n" for block, name in blocks.items()]
        with Path(os.environ["RECORDED_PAGES"]).open("ab", buffering=0) as file:
            file.write("".join(lines).encode())  # at once: other ranks write here too

    def _digest(self, block: int) -> str:
        digest = hashlib.sha256()
        for tensor in self._tensors.values():
            page = tensor[block].contiguous().view(torch.uint8)
            digest.update(page.numpy().tobytes())
        return digest.hexdigest()
