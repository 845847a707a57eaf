"""vLLM's plugin: registers the connector by name, in every process of vLLM.

Promised: a vLLM that does not use Forebay starts as it would without it, even if this fails.
Assumed: vLLM calls `register` (entry point `vllm.general_plugins`) before it looks up a connector,
and perhaps more than once in a process.
"""

from typing import Final

from forebay.engines.boundary import Boundary

CONNECTOR: Final = "ForebayConnector"
MODULE: Final = "forebay.engines.vllm.connector"


def register() -> None:
    """Make `"kv_connector": "ForebayConnector"` work without a module's path."""
    # vLLM does not catch what plugins raise, and the factory used here is no public interface.
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
