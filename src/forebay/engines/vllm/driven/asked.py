"""`python -m forebay.engines.vllm.driven.asked WISH`: an AsyncLLM that is asked by lines of JSON.

WISH is {"arguments": {…AsyncEngineArgs…}}. Lines in are one of

    {"id": 1, "tokens": […], "answer": 100, "stamps": false}   answered when the last token is there
    {"abort": 1}                                               its answer comes at once, cut short
    {"forget": true}                                           vLLM's own prefix cache is emptied
    {"counts": true}                                           all that Forebay has counted in it
    {"call": "module:function"}                                what that says of the engine's worker

Lines out: {"ready_s": …} first, then an answer to each but an abort, by its id or its kind. Times
are taken here, in the process that a user's front end would be. vLLM's statistics are on, as in a
server: they bring what the connector counts in the scheduler.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections import Counter
from functools import partial
from typing import Any, Final

_LINE_BYTES_MAX: Final = 64 << 20
_SWITCHES: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function of ours is sent to the worker
}


class Asked:
    """One engine and what it is being asked."""

    def __init__(self, engine: Any, output: Any, told: Counter[str]) -> None:
        self._engine = engine
        self._output = output
        self._told = told  # what vLLM's statistics said of the connector, in sum
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def say(self, what: dict[str, Any]) -> None:
        """A line to whoever asks."""
        self._output.write(json.dumps(what, separators=(",", ":")) + "\n")
        self._output.flush()

    async def hear(self, said: dict[str, Any]) -> None:
        """One line."""
        if "id" in said:
            task = asyncio.create_task(self._answer(said))
            self._tasks[said["id"]] = task
            task.add_done_callback(partial(self._ended, said["id"]))
        elif "abort" in said:
            task = self._tasks.get(said["abort"])  # type: ignore[assignment]
            if task is not None:
                task.cancel()
        elif "forget" in said:
            # Blocks of a request that has just been answered may still be in use.
            for _ in range(100):
                if await self._engine.reset_prefix_cache():
                    break
                await asyncio.sleep(0.02)
            self.say({"forget": True})
        elif "counts" in said:
            # The worker's own are newer than those that came with the last step.
            worker = (await self._engine.collective_rpc(worker_counts))[0]
            self.say({"counts": {**self._told, **worker}})
        elif "call" in said:
            module, _, name = said["call"].partition(":")
            function = getattr(importlib.import_module(module), name)
            self.say({"call": (await self._engine.collective_rpc(function))[0]})

    def _ended(self, number: int, task: "asyncio.Task[None]") -> None:
        del self._tasks[number]
        if task.cancelled():  # before it had begun
            nothing = {"tokens": [], "cached": 0, "is_cut": True, "ttft_s": 0.0, "seconds": 0.0}
            self.say({"id": number, **nothing})

    async def _answer(self, said: dict[str, Any]) -> None:
        from vllm import SamplingParams  # noqa: PLC0415 - imported by now
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        how = SamplingParams(
            temperature=0,
            max_tokens=said["answer"],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        tokens: list[int] = []
        stamps: list[float] = []
        cached = 0
        prompt = {"prompt_token_ids": said["tokens"]}
        if said.get("salt"):
            prompt["cache_salt"] = said["salt"]
        begun = time.perf_counter()
        is_cut = False
        try:
            async for output in self._engine.generate(prompt, how, f"r{said['id']}"):
                now = time.perf_counter() - begun
                new = output.outputs[0].token_ids
                tokens += new
                stamps += [now] * len(new)
                cached = max(cached, output.num_cached_tokens or 0)
        except asyncio.CancelledError:
            is_cut = True
        answer = {"id": said["id"], "tokens": tokens, "cached": cached, "is_cut": is_cut}
        answer["ttft_s"] = stamps[0] if stamps else 0.0
        answer["seconds"] = stamps[-1] if stamps else 0.0
        if said.get("stamps"):
            answer["stamps"] = [round(stamp, 6) for stamp in stamps]
        self.say(answer)


def worker_counts(worker: Any) -> dict[str, int]:
    """Run in the worker: what our side of it has counted; nothing where it is not ours."""
    del worker
    from vllm.distributed.kv_transfer import (  # noqa: PLC0415
        get_kv_transfer_group,
        has_kv_transfer_group,
    )

    side = getattr(get_kv_transfer_group(), "_worker", None) if has_kv_transfer_group() else None
    counts = dict(getattr(side, "counts", {}))
    copies = getattr(side, "_copies", None)
    return {**counts, "reach_bytes": getattr(copies, "reach_bytes", -1)}


def listener(told: Counter[str]) -> Any:
    """A logger for vLLM's statistics that sums up what our connector counts."""
    from vllm.v1.metrics.loggers import StatLoggerBase  # noqa: PLC0415 - imported by now

    class Listener(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            found = getattr(scheduler_stats, "kv_connector_stats", None) or {}
            told.update(found.get("counts", {}))
            for seconds in found.get("hooks", {}).values():
                told["hooks_us"] += round(sum(seconds) * 1e6)

        def log_engine_initialized(self) -> None:
            pass

    return Listener


async def serve(wish: dict[str, Any], output: Any) -> None:
    """Until there are no more lines."""
    begun = time.perf_counter()
    from vllm.config import KVTransferConfig  # noqa: PLC0415 - seconds, and counted
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    arguments = dict(wish["arguments"])
    if arguments.get("kv_transfer_config"):
        arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
    told: Counter[str] = Counter()
    wanted = AsyncEngineArgs(**arguments)
    engine = AsyncLLM.from_engine_args(wanted, stat_loggers=[listener(told)])
    asked = Asked(engine, output, told)
    asked.say({"ready_s": time.perf_counter() - begun})
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        await asked.hear(json.loads(line))
    engine.shutdown()


def main() -> int:
    """Serve the wish of the command line."""
    for name, value in _SWITCHES.items():
        os.environ.setdefault(name, value)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints as it likes; our answers have a line of their own
    asyncio.run(serve(json.loads(sys.argv[1]), output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
