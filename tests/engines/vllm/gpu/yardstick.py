"""vLLM as its own yardstick: what it answers when it recomputes, and from its own prefix cache.

Nothing here needs vLLM. A yardstick has the answers to the same prompts in several ways, all of
vLLM alone. Where all of them agree, every other way must agree too; where they do not, tokens
cannot tell more than how far vLLM is from itself, and nobody may be further off.
"""

from dataclasses import dataclass

Tokens = list[int]


@dataclass(frozen=True)
class Yardstick:
    """What vLLM alone answers."""

    recomputed: list[Tokens]
    otherwise: dict[str, list[Tokens]]  # likewise, by the way in which it came to them

    @property
    def unsure(self) -> int:
        """Prompts that vLLM alone answers in more than one way."""
        others = list(self.otherwise.values())
        return sum(
            any(other[at] != answer for other in others)
            for at, answer in enumerate(self.recomputed)
        )

    def only(self, places: list[int]) -> "Yardstick":
        """The same for some of the prompts."""
        ways = {way: [said[at] for at in places] for way, said in self.otherwise.items()}
        return Yardstick([self.recomputed[at] for at in places], ways)

    def differing(self, answers: list[Tokens]) -> int:
        """Answers that are not the recomputed ones."""
        return sum(a != b for a, b in zip(answers, self.recomputed, strict=True))

    def accepts(self, answers: list[Tokens]) -> bool:
        """Whether vLLM alone might have said this."""
        return answers in self.otherwise.values() or self.differing(answers) <= self.unsure

    def says(self, way: str, answers: list[Tokens]) -> str:
        """One way's counts, for the log."""
        found = f"{way}: {self.differing(answers)} of {len(answers)} answers differ"
        pairs = list(zip(answers, self.recomputed, strict=True))
        places = [first_difference(a, b) for a, b in pairs if a != b]
        if not places:
            return found
        same = [f"; all as {other}" for other, said in self.otherwise.items() if said == answers]
        return f"{found} (first at token {min(places) + 1}{''.join(same)})"

    def says_of_itself(self) -> str:
        """How vLLM compares with itself, for the log."""
        bare = Yardstick(self.recomputed, {})
        ways = [bare.says(way, answers) for way, answers in self.otherwise.items()]
        return "; ".join(["vLLM alone against recomputing", *ways, f"unsure of {self.unsure}"])


def first_difference(one: Tokens, other: Tokens) -> int:
    """The place of the first token that differs, from 0."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
