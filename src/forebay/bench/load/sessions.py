"""Chat sessions of made-up text: the same for the same seed, and unlike any other.

A dialog's history grows with each turn: what was said before, the answers as they came, and the
next message. So every turn but the first begins with what the server has seen already.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from forebay.bench.load.client import Message

_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"
_WORDS: Final = 4096
_SENTENCE_WORDS: Final = 12
TOKENS_A_WORD: Final = 2.0  # of these words, where no server has been asked


@dataclass(frozen=True, slots=True)
class PromptRequest:
    messages: Sequence[Message]
    answer_tokens: int
    turn: int = 0  # of its session, from 0
    pause_s: float = 0.0  # to think, after the answer before
    at_s: float = 0.0  # not before this time of the step

    @property
    def text(self) -> str:
        """All that it says, in one line."""
        return " ".join(message["content"] for message in self.messages)


@dataclass(frozen=True, slots=True)
class SyntheticText:
    """Text of so many tokens, by a server's own count of what its words take."""

    tokens_a_word: float = TOKENS_A_WORD

    def text(self, seed: str, tokens: int) -> str:
        """The same for the same seed."""
        luck = random.Random(seed)  # noqa: S311 - the same for everyone
        said = luck.choices(_vocabulary(), k=max(1, round(tokens / self.tokens_a_word)))
        parts = [
            " ".join(said[at : at + _SENTENCE_WORDS]).capitalize()
            for at in range(0, len(said), _SENTENCE_WORDS)
        ]
        return ". ".join(parts) + "."


class ChatSession:
    """Requests that follow one another: each is made from the answers before it."""

    def __init__(
        self, name: str, requests: int, make: Callable[[Sequence[str]], PromptRequest]
    ) -> None:
        self.name = name  # the same in every variant of a comparison
        self.answers: list[str] = []
        self._requests = requests
        self._make = make

    @property
    def turn(self) -> int:
        """The turn that is next, from 0."""
        return len(self.answers)

    def remaining(self) -> int:
        return self._requests - self.turn

    def request(self, turn: int | None = None) -> PromptRequest:
        """The next request, or that of an earlier turn."""
        return self._make(self.answers[:turn])

    def add_answer(self, text: str) -> None:
        """Add the answer to the last request; the text is empty if it failed."""
        self.answers.append(text)


def question(text: str, answer_tokens: int) -> PromptRequest:
    """A request of one message."""
    return PromptRequest([{"role": "user", "content": text}], answer_tokens)


def fixed_session(name: str, requests: Sequence[PromptRequest]) -> ChatSession:
    """Requests that are known beforehand, whatever the answers are."""
    return ChatSession(name, len(requests), lambda answers: requests[len(answers)])


def dialog(
    name: str,
    says: Sequence[str],
    answer_tokens: int,
    system: str = "",
    times_s: Sequence[float] = (),
) -> ChatSession:
    """One user's conversation, with a system prompt and a time for every turn where wanted."""

    def make(answers: Sequence[str]) -> PromptRequest:
        turn = len(answers)
        messages = [{"role": "system", "content": system}] if system else []
        for question, answer in zip(says, answers, strict=False):
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": says[turn]})
        at_s = times_s[turn] if times_s else 0.0
        return PromptRequest(messages, answer_tokens, turn, at_s=at_s)

    return ChatSession(name, len(says), make)


@lru_cache(maxsize=1)
def _vocabulary() -> list[str]:
    luck = random.Random("words")  # noqa: S311 - the same for everyone
    return [
        "".join(luck.choice(_CONSONANTS) + luck.choice(_VOWELS) for _ in range(luck.randint(1, 3)))
        for _ in range(_WORDS)
    ]
