"""Tests on real vLLM and the table of what was run: `has_run` fails unless the table says so."""

from functools import cache

from tests.engines.vllm.real import forked

from forebay.engines.vllm.kinds import CPU, KINDS, Support


def has_run(kind: str, device: str = CPU) -> None:
    """The test that calls this at its end has seen the kind with the release of vLLM it ran on."""
    release = _release()
    row = KINDS[kind]
    assert row.support is Support.SHARED
    assert row.has_run(release, device), (
        f"{kind} was run: add ({release!r}, {device!r}) to its row in engines/vllm/kinds.py,"
        " and run: make docs"
    )


@cache
def _release() -> str:
    return str(forked.call(_version)).partition("+")[0]


def _version() -> str:
    import vllm

    return str(vllm.__version__)
