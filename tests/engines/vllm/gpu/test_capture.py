"""A slab is registered while the engine captures graphs: both go well."""

import threading

import numpy as np
import pytest
import torch

from forebay.engines.copies.contract import WorkerSlab
from forebay.engines.copies.cuda import CudaDriver
from forebay.engines.copies.registration import Registration
from forebay.sys.shared import SharedMemory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.timeout(120),
]
ARENA, ARENAS = 64 << 20, 32
GRAPHS_MIN = 20


def test_graphs_are_captured_while_a_slab_is_registered() -> None:
    """As vLLM captures: on a stream of its own, in the mode that forbids other threads' calls."""
    shared, changed = SharedMemory.of(ARENAS * ARENA), threading.Condition()
    memory = np.frombuffer(shared.view, dtype=np.uint8)
    slab = WorkerSlab(1, memory, ARENA, ARENAS * ARENA)
    given, taken = torch.arange(64, device="cuda"), torch.zeros(64, device="cuda", dtype=torch.long)
    torch.cuda.synchronize()
    registration = Registration(CudaDriver("cuda:0"), slab, 1 << 20, changed)
    graphs: list[torch.cuda.CUDAGraph] = []
    is_beside = False
    while registration.ready_bytes < ARENAS * ARENA or len(graphs) < GRAPHS_MIN:
        assert not registration.why
        before = registration.ready_bytes
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            for _ in range(200):
                taken.add_(given)
        is_beside |= before < registration.ready_bytes
        graphs.append(graph)
    assert is_beside, "nothing was registered while a graph was captured"
    for graph in graphs:
        taken.zero_()
        graph.replay()
        assert torch.equal(taken, 200 * given)
    with changed:
        registration.unregister()
    registration._thread.join(60)
    assert registration.is_unregistered()
