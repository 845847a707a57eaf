"""vLLM's plugin: makes the connector known by its name alone, in every process of vLLM.

Promised: a vLLM that does not use Forebay starts as it would without it, with or without an error
here. Assumed: vLLM calls `register` (entry point `vllm.general_plugins`) before it looks a
connector up, and perhaps more than once in a process.
"""

from typing import Final

from forebay.engines.boundary import Boundary

CONNECTOR: Final = "ForebayConnector"
MODULE: Final = "forebay.engines.vllm.connector"


def register() -> None:
    """Let `"kv_connector": "ForebayConnector"` suffice, without a module's path."""
    # vLLM calls plugins unprotected, and what is asked of its factory here it promises to nobody.
    Boundary().call(lambda: None, _register)


def _register() -> None:
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import (  # noqa: PLC0415
            KVConnectorFactory,
        )
    except ImportError:
        return  # no connectors, or elsewhere: the module's path may still work
    if CONNECTOR not in KVConnectorFactory._registry:  # noqa: SLF001 # it has no public question
        KVConnectorFactory.register_connector(CONNECTOR, MODULE, CONNECTOR)
