"""Workloads of made-up text: dialogs, questions with a long history, documents, and nothing shared.

A workload is a queue of sessions for a number of clients; each client holds `hold` of them in turn.
Every step has a seed of its own, so that no step finds what another has left in a cache.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from forebay.bench.load.sessions import (
    ChatSession,
    SyntheticText,
    dialog,
    fixed_session,
    question,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(ABC):
    """What is asked of a server."""

    name: ClassVar[str]  # as the command line has it
    hold: int = 1  # sessions that a client holds at once, turn by turn

    @abstractmethod
    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        """The sessions of one step, the same for the same seed."""

    def lanes(self, clients: int) -> int:
        """Sessions that are under way at once."""
        return clients

    def options(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Dialogs(Workload):
    """Dialogs whose history grows; each client has `hold` of them, turn by turn."""

    turns: int = 6
    first_tokens: int = 1500
    turn_tokens: int = 500
    answer_tokens: int = 250  # with the others, 5,500 tokens at the end of six turns
    name: ClassVar = "dialog"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        for number in range(clients * self.hold):
            yield self.dialog(words, f"dialog {number + 1}", f"{seed}/dialog/{number}")

    def dialog(self, words: SyntheticText, name: str, seed: str) -> ChatSession:
        sizes = [self.first_tokens, *[self.turn_tokens] * (self.turns - 1)]
        says = [words.text(f"{seed}/{turn}", size) for turn, size in enumerate(sizes)]
        return dialog(name, says, self.answer_tokens)


@dataclass(frozen=True, slots=True)
class Questions(Workload):
    """Users with one system prompt, a long history each, and questions at a rate of all users.

    An open loop: a question has its time whatever the server does; only its own user's answer
    before it can delay it, and then it counts as late.
    """

    rate: float = 1.0  # questions a second, of all users together
    turns: int = 5
    system_tokens: int = 1000
    history_tokens: int = 10_000
    question_tokens: int = 50
    answer_tokens: int = 100
    name: ClassVar = "qa"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        system = words.text(f"{seed}/system", self.system_tokens)
        luck = random.Random(f"{seed}/times")  # noqa: S311 - the same for everyone
        times: list[list[float]] = [[] for _ in range(clients)]
        at_s = 0.0
        for number in range(clients * self.turns):
            times[number % clients].append(at_s)
            at_s += luck.expovariate(self.rate)
        for number in range(clients):
            key = f"{seed}/qa/{number}"
            opening = words.text(f"{key}/history", self.history_tokens)
            asked = [
                words.text(f"{key}/{turn}", self.question_tokens) for turn in range(self.turns)
            ]
            asked[0] = f"{opening}\n\n{asked[0]}"
            yield dialog(f"user {number + 1}", asked, self.answer_tokens, system, times[number])


@dataclass(frozen=True, slots=True)
class Documents(Workload):
    """Users ask about documents; a few are asked for often, most rarely (Zipf).

    With the template, the document stands before what is the user's own, so that users share it.
    """

    documents: int = 20
    document_tokens: int = 8000
    skew: float = 1.0  # popularity of the n-th document: n ** -skew
    question_tokens: int = 50
    answer_tokens: int = 100
    requests: int = 10  # of each user
    is_template: bool = False
    name: ClassVar = "document"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        texts = [
            words.text(f"{seed}/document/{number}", self.document_tokens)
            for number in range(self.documents)
        ]
        weights = [(rank + 1) ** -self.skew for rank in range(self.documents)]
        for number in range(clients):
            luck = random.Random(f"{seed}/reader/{number}")  # noqa: S311
            chosen = luck.choices(texts, weights, k=self.requests)
            asks = []
            for count, document in enumerate(chosen):
                own = words.text(f"{seed}/reader/{number}/{count}", self.question_tokens)
                parts = [document, own] if self.is_template else [own, document]
                asks.append(question("\n\n".join(parts), self.answer_tokens))
            yield fixed_session(f"user {number + 1}", asks)


@dataclass(frozen=True, slots=True)
class Stateless(Workload):
    """Requests that share nothing with one another: no cache can help, every cache costs."""

    prompt_tokens: int = 1000
    answer_tokens: int = 100
    requests: int = 6  # of each client
    name: ClassVar = "stateless"

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        for number in range(clients):
            seeds = [f"{seed}/stateless/{number}/{count}" for count in range(self.requests)]
            texts = [words.text(each, self.prompt_tokens) for each in seeds]
            asks = [question(text, self.answer_tokens) for text in texts]
            yield fixed_session(f"client {number + 1}", asks)
