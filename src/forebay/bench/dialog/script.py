"""What users say: dialogs of made-up words, the same for the same seed, unlike any other.

A dialog's history grows with each turn: what was said before, the answers as they came, and the
next message. So every turn but the first begins with what the server has seen already.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"
_SENTENCE_WORDS: Final = 12

Message = dict[str, str]  # role and content, as the protocol has it


@dataclass(frozen=True, slots=True)
class Shape:
    """What dialogs look like."""

    dialogs: int
    turns: int
    first_words: int  # of the first message: a document to speak about
    turn_words: int  # of every later one
    answer_tokens: int  # exactly so many are generated
    seed: int = 0


class Dialog:
    """One user's conversation, as far as it has come."""

    def __init__(self, name: str, says: Sequence[str]) -> None:
        self.name = name
        self.answers: list[str] = []
        self._says = says

    @property
    def turn(self) -> int:
        """The turn that is next, from 0."""
        return len(self.answers)

    def messages(self) -> list[Message]:
        """The next request: everything so far and what the user says now."""
        return self.messages_of(self.turn)

    def messages_of(self, turn: int) -> list[Message]:
        """The request of a turn that was, or of the next."""
        found: list[Message] = []
        for said, answer in zip(self._says[:turn], self.answers[:turn], strict=True):
            found.append({"role": "user", "content": said})
            found.append({"role": "assistant", "content": answer})
        return [*found, {"role": "user", "content": self._says[turn]}]

    def answered(self, text: str) -> None:
        """The turn is over."""
        self.answers.append(text)


def make(shape: Shape) -> list[Dialog]:
    """Dialogs in which nothing has been said yet; their first words differ from one another."""
    return [_dialog(shape, number) for number in range(shape.dialogs)]


def _dialog(shape: Shape, number: int) -> Dialog:
    luck = random.Random(f"{shape.seed}/{number}")  # noqa: S311 - the same for everyone
    sizes = [shape.first_words, *[shape.turn_words] * (shape.turns - 1)]
    return Dialog(f"dialog {number + 1}", [_text(luck, words) for words in sizes])


def _text(luck: random.Random, words: int) -> str:
    said = [_word(luck) for _ in range(words)]
    sentences = [said[at : at + _SENTENCE_WORDS] for at in range(0, words, _SENTENCE_WORDS)]
    return " ".join(" ".join(sentence).capitalize() + "." for sentence in sentences)


def _word(luck: random.Random) -> str:
    syllables = luck.randint(1, 3)
    return "".join(luck.choice(_CONSONANTS) + luck.choice(_VOWELS) for _ in range(syllables))
