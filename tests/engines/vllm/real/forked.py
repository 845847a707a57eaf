"""Processes forked from one that has imported vLLM, which takes 13 CPU seconds: once a test run.

That process (multiprocessing's fork server) runs nothing else, so what is forked from it has no
engine, no thread and no lock of anybody's. A child has the variables below, its end of a pipe, and
`sys.path` as it is here; what it prints belongs to the test that runs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from unittest.mock import patch

from tests.pool_process import environment

# For every process that runs vLLM.
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Small models gain nothing from two threads, and two that wait for each other lose everything
    # on a machine that is busy otherwise.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Before 0.29 vLLM's own hashes, by which recorded pages are named, depend on this seed.
    "PYTHONHASHSEED": "0",
    # Engines are killed, so what they leave behind is no news.
    "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
}
# One that a release of vLLM does not have is imported later, by whoever needs it.
PRELOADED = [
    "transformers.models.llama.modeling_llama",
    "vllm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.llama",
]
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED)


def start(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Run `target(pipe, *arguments)` in a child; the child, and our end of the pipe."""
    ours, theirs = _CONTEXT.Pipe()
    child = _CONTEXT.Process(target=target, args=(theirs, *arguments))
    with _variables():
        child.start()
    theirs.close()
    return child, ours


def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What the function returns in a child; where it fails, the child has printed why."""
    child, pipe = start(_answer, function, arguments, named)
    try:
        return pipe.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"{function.__name__} ended with {child.exitcode}") from None
    finally:
        pipe.close()
        child.join()


def _answer(
    pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], named: Any
) -> None:
    pipe.send(function(*arguments, **named))


@contextmanager
def _variables() -> Iterator[None]:
    """What the fork server inherits where it is not running yet."""
    with patch.dict(os.environ, {**environment(), **VARIABLES}, clear=True):
        yield
