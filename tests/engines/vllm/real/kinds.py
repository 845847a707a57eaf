"""Tests on real vLLM and the table of what was run: `has_run` fails unless the table says so."""

from tests.engines.vllm.real import forked

from forebay.engines.vllm.kinds import CPU, KINDS, Support


def has_run(kind: str, device: str = CPU) -> None:
    """The test that calls this at its end has seen the kind with the release of vLLM it ran on."""
    release = forked.call(_release)
    row = KINDS[kind]
    assert row.support is Support.SHARED
    assert row.has_run(release, device), (
        f"{kind} was run: add ({release!r}, {device!r}) to its row in engines/vllm/kinds.py,"
        " and run: make docs"
    )


def _release() -> str:
    import vllm

    return str(vllm.__version__).partition("+")[0]
