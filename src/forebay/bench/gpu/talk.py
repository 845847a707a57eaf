"""What is asked of an engine: dialogs and stateless prompts by clients that wait for their answers.

The dialogs are the demo's, word for word; only here a word is a token: one that stands for an id
(`t17`) is that id, any other has an id of its own by its hash.
"""

import asyncio
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from forebay.bench.gpu.engine import Engine, Reply
from forebay.bench.gpu.sides import Scale
from forebay.bench.load.client import Message
from forebay.bench.load.script import Dialog, Prose

TURNS: Final = 6
DIALOGS_A_CLIENT: Final = 2
_RESERVED: Final = 16  # low ids mean things to models
_PROSE: Final = Prose(tokens_a_word=1.0)  # here a word is a token


class Words:
    """A vocabulary of so many ids."""

    def __init__(self, vocabulary: int) -> None:
        self._size = vocabulary
        self._known: dict[str, int] = {}

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """All words of all messages, in order."""
        known = self._known
        words = [word for message in messages for word in message["content"].split()]
        for word in set(words).difference(known):
            known[word] = self._id(word)
        return [known[word] for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        """What `encode` reads as these ids."""
        return " ".join(f"t{number}" for number in ids)

    def _id(self, word: str) -> int:
        if word[0] == "t" and word[1:].isdigit():
            return int(word[1:])
        plain = word.strip(".").lower()
        return _RESERVED + zlib.crc32(plain.encode()) % (self._size - _RESERVED)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request and its answer."""

    turn: int  # of its dialog, from 0
    prompt_tokens: int
    known_tokens: int  # of these, said before in the same dialog
    reply: Reply


@dataclass(frozen=True, slots=True)
class Returning:
    """The next turn of a dialog: all of it so far, and something new."""

    prompt: list[int]
    known_tokens: int  # of these, said before


def prompts(scale: Scale, count: int, tokens: int, seed: int) -> list[list[int]]:
    """Prompts that have nothing in common."""
    words = Words(scale.config["vocab_size"])
    made = dialogs_of(count, [tokens], scale.answer_tokens, seed)
    return [words.encode(dialog.ask().messages) for dialog in made]


def dialogs_of(count: int, turns: Sequence[int], answer_tokens: int, seed: int) -> list[Dialog]:
    """Dialogs in which nothing has been said yet; their first words differ from one another."""
    return [
        Dialog(
            f"dialog {number}",
            [_PROSE.text(f"{seed}/{number}/{at}", tokens) for at, tokens in enumerate(turns)],
            answer_tokens,
        )
        for number in range(count)
    ]


async def stateless(engine: Engine, scale: Scale, clients: int, seed: int) -> dict[str, Any]:
    """So many clients, each asking something new as soon as it was answered."""
    waiting = prompts(scale, scale.requests, scale.prompt_tokens, seed)
    asked: list[Asked] = []

    async def client() -> None:
        while waiting:
            prompt = waiting.pop()
            reply = await engine.ask(prompt, scale.answer_tokens)
            asked.append(Asked(0, len(prompt), 0, reply))

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return figures(asked, time.perf_counter() - begun)


async def dialogs(engine: Engine, scale: Scale, clients: int, seed: int) -> dict[str, Any]:
    """So many clients, each holding two dialogs turn by turn."""
    words = Words(scale.config["vocab_size"])
    made = dialogs_of(clients * DIALOGS_A_CLIENT, _turns(scale), scale.answer_tokens, seed)
    asked: list[Asked] = []

    async def client(own: Sequence[Dialog]) -> None:
        known = [0] * len(own)
        for turn in range(TURNS):
            for number, dialog in enumerate(own):
                prompt = words.encode(dialog.ask().messages)
                reply = await engine.ask(prompt, scale.answer_tokens)
                asked.append(Asked(turn, len(prompt), known[number], reply))
                known[number] = len(prompt) + len(reply.tokens)
                dialog.answered(words.decode(reply.tokens))

    begun = time.perf_counter()
    await asyncio.gather(*(client(made[at::clients]) for at in range(clients)))
    return figures(asked, time.perf_counter() - begun)


async def returning(engine: Engine, scale: Scale, count: int, seed: int) -> list[Returning]:
    """So many dialogs, held at once up to their last turn; that one is left to ask."""
    words = Words(scale.config["vocab_size"])

    async def hold(dialog: Dialog) -> Returning:
        known = 0
        for _ in range(TURNS - 1):
            prompt = words.encode(dialog.ask().messages)
            reply = await engine.ask(prompt, scale.answer_tokens)
            dialog.answered(words.decode(reply.tokens))
            known = len(prompt) + len(reply.tokens)
        return Returning(words.encode(dialog.ask().messages), known)

    made = dialogs_of(count, _turns(scale), scale.answer_tokens, seed)
    return list(await asyncio.gather(*map(hold, made)))


def _turns(scale: Scale) -> list[int]:
    """Tokens that the user of a dialog says in each of its turns."""
    return [scale.first_tokens, *[scale.turn_tokens] * (TURNS - 1)]


def figures(asked: Sequence[Asked], seconds: float) -> dict[str, Any]:
    """What it took: times in milliseconds."""
    ttfts = [each.reply.ttft_s * 1000 for each in asked]
    returning = sum(each.known_tokens for each in asked)
    # What an engine had of a dialog; it may have more in common than was said before.
    cached = sum(min(each.reply.cached, each.known_tokens) for each in asked)
    found = {
        "requests": len(asked),
        "seconds": seconds,
        "requests_per_s": len(asked) / seconds,
        "ttft_mean_ms": fmean(ttfts),
        "ttft_p95_ms": sorted(ttfts)[len(ttfts) * 95 // 100],
        "tpot_mean_ms": fmean(each.reply.tpot_s * 1000 for each in asked),
        "cached_share": cached / returning if returning else 0.0,
        "prompt_tokens": sum(each.prompt_tokens for each in asked),
    }
    return {name: round(value, 4) for name, value in found.items()}
