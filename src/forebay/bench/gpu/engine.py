"""An engine of a row: an AsyncLLM in a process of its own, asked with token ids."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from forebay.errors import StartupError

_CHILD: Final = "forebay.engines.vllm.driven.asked"
_BEGIN_S: Final = 300.0
_ANSWER_S: Final = 240.0
_END_S: Final = 15.0
_LINE_BYTES_MAX: Final = 64 << 20
_SAID_LINES: Final = 25


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer and what it took."""

    tokens: list[int]
    cached: int  # tokens of the prompt that were not computed
    ttft_s: float
    seconds: float  # to the last token
    stamps: list[float]  # of every token, where asked for
    is_cut: bool  # aborted

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first."""
        return (self.seconds - self.ttft_s) / max(1, len(self.tokens) - 1)


class Engine:
    """One engine under way. Used in one event loop."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.ready_s = 0.0  # from its import of vLLM until it could be asked
        self._process = process
        self._log = log
        self._waiting: dict[int | str, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = 0
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, arguments: Mapping[str, Any], log: Path, variables: Mapping[str, str] | None = None
    ) -> Self:
        """An engine that can be asked; a StartupError with its last words where there is none."""
        wish = json.dumps({"arguments": dict(arguments)})
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", _CHILD, wish),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                limit=_LINE_BYTES_MAX,
                start_new_session=True,
                env={**os.environ, **(variables or {})},
            )
        engine = cls(process, log)
        try:
            ready = await engine._await("ready_s", _BEGIN_S)
            engine.ready_s = float(ready["ready_s"])
        finally:
            if not engine.ready_s:
                await engine.stop()
        return engine

    async def ask(self, tokens: Sequence[int], answer: int, *, stamps: bool = False) -> Reply:
        """Exactly so many tokens, greedily."""
        return await self.answered(self.begin(tokens, answer, stamps=stamps))

    def begin(self, tokens: Sequence[int], answer: int, *, stamps: bool = False) -> int:
        """Ask, and go on; the number is what `answered` and `abort` want."""
        self._numbers += 1
        wish = {"id": self._numbers, "tokens": list(tokens), "answer": answer, "stamps": stamps}
        self._expect(self._numbers)
        self._write(wish)
        return self._numbers

    async def answered(self, number: int) -> Reply:
        """The answer to what was begun."""
        said = await self._await(number, _ANSWER_S)
        told = (said["tokens"], said["cached"], said["ttft_s"], said["seconds"])
        return Reply(*told, said.get("stamps", []), said["is_cut"])

    def abort(self, number: int) -> None:
        """Cut an answer short."""
        self._write({"abort": number})

    async def forget(self) -> None:
        """Empty vLLM's own prefix cache."""
        self._expect("forget")
        self._write({"forget": True})
        await self._await("forget", _ANSWER_S)

    async def counts(self) -> dict[str, int]:
        """What Forebay has counted in it, by its scheduler and its worker; docs/serve.md."""
        self._expect("counts")
        self._write({"counts": True})
        found: dict[str, int] = (await self._await("counts", _ANSWER_S))["counts"]
        return found

    async def call(self, function: str) -> Any:  # noqa: ANN401 - whatever it says
        """What a function, as `module:name`, says of the engine's worker."""
        self._expect("call")
        self._write({"call": function})
        return (await self._await("call", _ANSWER_S))["call"]

    async def stop(self) -> None:
        """End it, and everything it started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_S)
        self.kill()
        await self._process.wait()
        await self._reader

    def kill(self) -> None:
        """As an engine dies: with all of its processes, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _write(self, wish: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wish, separators=(",", ":")).encode() + b"\n")

    def _expect(self, key: int | str) -> asyncio.Future[dict[str, Any]]:
        future = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        return future

    async def _await(self, key: int | str, seconds: float) -> dict[str, Any]:
        future = self._waiting.get(key) or self._expect(key)
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise StartupError(f"the engine did not answer; {self._last_words()}") from None
        finally:
            self._waiting.pop(key, None)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            key = said.get("id") or next(iter(said))
            future = self._waiting.get(key)
            if future is None and key == "ready_s":
                future = self._expect(key)
            if future is not None and not future.done():
                future.set_result(said)
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(StartupError(f"the engine ended; {self._last_words()}"))

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "it said last:\n" + "\n".join(lines[-_SAID_LINES:])
