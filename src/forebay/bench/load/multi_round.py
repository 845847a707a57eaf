"""Users who come, ask some rounds of questions about their own history, and go.

The parameters and their names are those of the multi-round QA benchmark of the vLLM production
stack, so that results can be laid side by side: who asks when is the same, the words are not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from forebay.bench.load.sessions import ChatSession, SyntheticText, dialog
from forebay.bench.load.workloads import Workload
from forebay.errors import SettingsError

_QUESTION_TOKENS: Final = 16


class Visit(NamedTuple):
    """One user: the rounds that are asked, and when, in seconds of the step."""

    first_round: int  # from 0; of a user who was there when it began, the rounds before are over
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MultiRoundQuestions(Workload):
    """An open loop with as many users at once as there are clients."""

    num_rounds: int = 5  # questions of a user
    qps: float = 0.5  # questions a second, of all users together
    shared_system_prompt: int = 1000  # tokens that all users share
    user_history_prompt: int = 2000  # tokens of each user's own
    answer_len: int = 100  # tokens
    time: float = 100.0  # seconds of a step; after that no question begins
    name: ClassVar = "multi-round-qa"

    def __post_init__(self) -> None:
        if self.num_rounds < 2:
            raise SettingsError("--num-rounds must be at least 2: one round is no dialog.")

    def lanes(self, clients: int) -> int:
        """As many as there are visits, since a late answer does not delay the next user."""
        return max(1, len(self.visits(clients)))

    def queue(self, words: SyntheticText, clients: int, seed: str) -> Iterator[ChatSession]:
        system = words.text(f"{seed}/system", self.shared_system_prompt)
        for number, visit in enumerate(self.visits(clients), 1):
            history = words.text(f"{seed}/history/{number}", self.user_history_prompt)
            rounds = range(visit.first_round, visit.first_round + len(visit.times_s))
            key = f"{seed}/multi-round/{number}"
            says = [words.text(f"{key}/{each}", _QUESTION_TOKENS) for each in rounds]
            says[0] = "\n\n".join([system, history, says[0]])
            yield dialog(f"user {number}", says, self.answer_len, times_s=visit.times_s)

    def visits(self, users: int) -> list[Visit]:
        """All users who ask within the time, in the order of their first questions.

        A user asks every users / qps seconds, and goes with the last question. At the beginning
        users are there whose visits began one after the other, evenly over the length of a visit;
        then a new one comes as evenly. That makes qps x rounds / (rounds - 1) questions a second.
        """
        gap_s = users / self.qps
        apart_s = gap_s * (self.num_rounds - 1) / users
        found = []
        for place in range(users):
            # Of the length of a visit, this user has had (users - place) / users.
            asked = (self.num_rounds - 1) * (users - place) // users + 1
            begun_s = place * apart_s - gap_s * (self.num_rounds - 1)
            found.append(self._visit(begun_s, asked, gap_s))
        joined = 0
        while joined * apart_s < self.time:
            found.append(self._visit(joined * apart_s, 0, gap_s))
            joined += 1
        return sorted((each for each in found if each.times_s), key=lambda each: each.times_s[0])

    def _visit(self, begun_s: float, asked: int, gap_s: float) -> Visit:
        times = (begun_s + number * gap_s for number in range(asked, self.num_rounds))
        return Visit(asked, tuple(max(0.0, at_s) for at_s in times if at_s < self.time))
