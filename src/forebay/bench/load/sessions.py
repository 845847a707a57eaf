"""What users say: made-up words, the same for the same seed, unlike any other; and whole dialogs.

A dialog's history grows with each turn: what was said before, the answers as they came, and the
next message. So every turn but the first begins with what the server has seen already.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from forebay.bench.load.client import Message

_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"
_WORDS: Final = 4096
_SENTENCE_WORDS: Final = 12
TOKENS_A_WORD: Final = 2.0  # of these words, where no server has been asked


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One request."""

    messages: Sequence[Message]
    answer_tokens: int
    turn: int = 0  # of its session, from 0
    pause_s: float = 0.0  # to think, after the answer before
    at_s: float = 0.0  # not before this time of the step


class ChatSession(Protocol):
    """Requests that follow one another: each is made when the answer before has come."""

    name: str  # the same on both sides of a comparison

    def left(self) -> int:
        """How many requests are still to come."""

    def ask(self) -> PromptRequest:
        """The next request, where one is left."""

    def answered(self, text: str) -> None:
        """The request is over; the text is empty where it failed."""


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


class Dialog:
    """One user's conversation, as far as it has come."""

    def __init__(self, name: str, says: Sequence[str], answer_tokens: int) -> None:
        self.name = name
        self.answers: list[str] = []
        self._says = says
        self._answer_tokens = answer_tokens

    @property
    def turn(self) -> int:
        """The turn that is next, from 0."""
        return len(self.answers)

    def left(self) -> int:
        """See ChatSession."""
        return len(self._says) - self.turn

    def ask(self) -> PromptRequest:
        """See ChatSession."""
        return self.ask_of(self.turn)

    def ask_of(self, turn: int) -> PromptRequest:
        """The request of a turn that was, or of the next."""
        found: list[Message] = []
        for said, answer in zip(self._says[:turn], self.answers[:turn], strict=True):
            found.append({"role": "user", "content": said})
            found.append({"role": "assistant", "content": answer})
        found.append({"role": "user", "content": self._says[turn]})
        return PromptRequest(found, self._answer_tokens, turn)

    def answered(self, text: str) -> None:
        """See ChatSession."""
        self.answers.append(text)

    def text(self) -> str:
        """All that the next request says."""
        return " ".join(message["content"] for message in self.ask().messages)


@lru_cache(maxsize=1)
def _vocabulary() -> list[str]:
    luck = random.Random("words")  # noqa: S311 - the same for everyone
    return [
        "".join(luck.choice(_CONSONANTS) + luck.choice(_VOWELS) for _ in range(luck.randint(1, 3)))
        for _ in range(_WORDS)
    ]
