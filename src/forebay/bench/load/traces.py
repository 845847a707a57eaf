"""Workloads from files: agent sessions, chat requests, and users' own traces.

Traces have no text, only which blocks of a prompt are equal: each block becomes made-up words that
are equal exactly where the trace says so. docs/bench.md has the formats.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from forebay.bench.load.client import Message
from forebay.bench.load.sessions import (
    ChatSession,
    PromptRequest,
    SyntheticText,
    dialog,
    fixed_session,
)
from forebay.bench.load.workloads import Workload
from forebay.errors import SettingsError
from forebay.sim.trace_file import (
    CONVERSATION_BLOCK_TOKENS,
    AgentSession,
    ConversationRequest,
    read_lines,
)


class _OwnLine(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str | None = None
    messages: list[Message] | None = None
    turns: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    answer_tokens: Annotated[int, msgspec.Meta(ge=1, le=10**6)] | None = None


@dataclass(frozen=True, slots=True)
class _Prompt:
    blocks: tuple[int, ...]
    rest_tokens: int  # behind the last whole block
    answer_tokens: int
    pause_s: float = 0.0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Trace(Workload):
    """A file, and how it is replayed; clients share its sessions among them."""

    trace: Path
    think: float = 1.0  # factor on pauses and times; 0: none
    prompt_tokens_max: int | None = None  # what is longer is left out, with all of its session
    block_tokens: int | None = None  # that a block of the trace stands for; None: as it says
    answer_tokens: int | None = None  # None: as the trace says
    sessions: int | None = None  # of a step; None: all

    def options(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self), "trace": self.trace.name}

    def _prompt(
        self, ids: Iterable[int], tokens: int, answer_tokens: int, block_tokens: int
    ) -> _Prompt:
        """The whole blocks of a prompt, and what is left, at the size that it is shown in."""
        blocks = tuple(islice(ids, tokens // block_tokens))
        rest = tokens % block_tokens * (self.block_tokens or block_tokens) // block_tokens
        return _Prompt(blocks, rest, self.answer_tokens or max(1, answer_tokens))

    def _fit(self, prompts: list[_Prompt], block_tokens: int) -> bool:
        most = self.prompt_tokens_max
        sizes = [len(each.blocks) * block_tokens + each.rest_tokens for each in prompts]
        return most is None or max(sizes, default=0) <= most


@dataclass(frozen=True, slots=True)
class AgentTrace(_Trace):
    """Coding agents: a client holds one session after the other and thinks between requests."""

    name: ClassVar = "agent"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        del clients
        found = (
            _session(row.id, prompts, block, _BlockTexts(words, f"{seed}/{row.id}"))
            for row in read_lines(self.trace, AgentSession)
            for block in [self.block_tokens or row.block_size]
            if (prompts := self._prompts(row)) and self._fit(prompts, block)
        )
        return _limited(found, self.sessions, self.trace)

    def _prompts(self, row: AgentSession) -> list[_Prompt]:
        """In order of time, sub-agents among them."""
        prompts = []
        for _, request in row.in_order():
            prompt = self._prompt(
                request.blocks(), request.tokens, request.out_tokens, row.block_size
            )
            prompts.append(replace(prompt, pause_s=request.think_time * self.think))
        return prompts


@dataclass(frozen=True, slots=True)
class ChatTrace(_Trace):
    """Chat requests in the order of a trace: clients take one each, none before its time."""

    name: ClassVar = "chat"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        del clients
        rows = sorted(read_lines(self.trace, ConversationRequest), key=lambda row: row.timestamp)
        block = self.block_tokens or CONVERSATION_BLOCK_TOKENS
        shared = _BlockTexts(words, seed)  # an id means the same in every request
        found = (
            _session(f"request {number}", [prompt], block, shared)
            for number, prompt in enumerate(map(self._timed, rows), 1)
            if self._fit([prompt], block)
        )
        return _limited(found, self.sessions, self.trace)

    def _timed(self, row: ConversationRequest) -> _Prompt:
        lengths = row.input_length, row.output_length
        prompt = self._prompt(row.hash_ids, *lengths, CONVERSATION_BLOCK_TOKENS)
        return replace(prompt, at_s=row.timestamp / 1000 * self.think)


@dataclass(frozen=True, slots=True)
class RequestFile(Workload):
    """The user's own requests, one a line: a `prompt`, `messages`, or the user's `turns`."""

    file: Path
    answer_tokens: int = 250  # where a line does not say
    sessions: int | None = None
    name: ClassVar = "file"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        # The text is the user's, so every step asks the same.
        del words, clients, seed
        rows = read_lines(self.file, _OwnLine)
        made = (self._session(number, row) for number, row in enumerate(rows, 1))
        return _limited(made, self.sessions, self.file)

    def options(self) -> dict[str, Any]:
        return {"name": self.name, "file": self.file.name, "answer_tokens": self.answer_tokens}

    def _session(self, number: int, row: _OwnLine) -> ChatSession:
        tokens = row.answer_tokens or self.answer_tokens
        said = [part is not None for part in (row.prompt, row.messages, row.turns)]
        if sum(said) != 1:
            raise SettingsError(
                f"line {number} of {self.file} must have one of prompt, messages and turns."
            )
        if row.turns is not None:
            return dialog(f"line {number}", row.turns, tokens)
        messages = row.messages or [{"role": "user", "content": row.prompt or ""}]
        return fixed_session(f"line {number}", [PromptRequest(messages, tokens)])


def _session(
    name: str, prompts: Sequence[_Prompt], block_tokens: int, texts: "_BlockTexts"
) -> ChatSession:
    """A session of a trace: what is asked next stands there, whatever the answers are."""

    def make(answers: Sequence[str]) -> PromptRequest:
        turn = len(answers)
        prompt = prompts[turn]
        parts = [texts.of(block, block_tokens) for block in prompt.blocks]
        if prompt.rest_tokens or not parts:
            own = f"{texts.seed}/{name}/{turn}"
            parts.append(texts.words.text(own, prompt.rest_tokens))
        messages = [{"role": "user", "content": "\n".join(parts)}]
        return PromptRequest(messages, prompt.answer_tokens, turn, prompt.pause_s, prompt.at_s)

    return ChatSession(name, len(prompts), make)


@dataclass(slots=True)
class _BlockTexts:
    """The made-up words of each block, made when they are first needed."""

    words: SyntheticText
    seed: str
    known: dict[int, str] = field(default_factory=dict)

    def of(self, block: int, tokens: int) -> str:
        if block not in self.known:
            self.known[block] = self.words.text(f"{self.seed}/block/{block}", tokens)
        return self.known[block]


def _limited(found: Iterator[ChatSession], count: int | None, path: Path) -> Iterator[ChatSession]:
    """At most so many sessions; a SettingsError if there is none at all."""
    first = next(found, None)
    if first is None:
        raise SettingsError(f"{path} has nothing to ask within --prompt-tokens-max.")
    return islice(chain([first], found), count)
