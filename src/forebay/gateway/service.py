"""The gateway as a process: puts its parts together and runs until it is told to end."""

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from forebay.barrier import Barrier
from forebay.errors import StartupError
from forebay.gateway.config import GatewayConfig

_CLOSE_S: Final = 10.0  # that answers under way have to end when the gateway does
_log: Final = logging.getLogger(__name__)


def require() -> None:
    """Check that the gateway's packages are installed; StartupError if not."""
    try:
        import aiohttp  # noqa: F401, PLC0415 - takes 0.2 s that other commands do not need
    except ModuleNotFoundError:
        raise StartupError(
            "the gateway needs aiohttp; install it with: pip install aiohttp uvloop"
        ) from None


def run(config: GatewayConfig, ready: Callable[[int], None] = lambda _port: None) -> None:
    """Serve until SIGTERM, SIGHUP or KeyboardInterrupt; `ready` is told the port."""
    require()
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_until_told(config, ready))


async def _serve_until_told(config: GatewayConfig, ready: Callable[[int], None]) -> None:
    """Serve; signals cancel this task, since an exception raised by a handler could get lost."""
    this, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, this.cancel)
    await serve(config, ready)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - likewise
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


async def serve(config: GatewayConfig, ready: Callable[[int], None]) -> None:
    """As `run`, on a running event loop and without signals."""
    from forebay.gateway.front.forwarding import Forwarding  # noqa: PLC0415 - these need aiohttp
    from forebay.gateway.front.handler import Front  # noqa: PLC0415
    from forebay.gateway.http.client import EngineClient  # noqa: PLC0415
    from forebay.gateway.http.server import FrontLimits, FrontServer  # noqa: PLC0415
    from forebay.gateway.placement.dispatcher import Dispatcher  # noqa: PLC0415
    from forebay.gateway.seen import GatewayMetrics  # noqa: PLC0415
    from forebay.gateway.swap.setup import SharedGpus  # noqa: PLC0415
    from forebay.gateway.watching import EngineWatch  # noqa: PLC0415

    gpus = SharedGpus(config)
    dispatcher, metrics, client = Dispatcher(config), GatewayMetrics(), EngineClient()
    front = Front(config, dispatcher, Forwarding(dispatcher, client, metrics), metrics)
    limits = FrontLimits(
        body_bytes_max=config.body_bytes_max, bodies_bytes_max=config.bodies_bytes_max
    )
    server = FrontServer(front.handle, limits, Barrier())
    watching = EngineWatch(dispatcher, client)
    gpus.begin(dispatcher, client, metrics, watching.look)

    async def keep() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watching.run())
            tasks.create_task(gpus.run())

    watch = asyncio.create_task(keep())
    try:
        port = await server.start(*config.listen)
        _log.info("listening at %s:%d for %d engines", config.listen[0], port, len(config.engines))
        ready(port)
        await watch
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await server.close(_CLOSE_S)
        await client.close()
        gpus.close()
