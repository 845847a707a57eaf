"""What runs out first, and when, if things go on as they did between two snapshots.

A pool's tiers fill up and then drop what is least valuable, so a full tier is normal: what matters
then is how long a chunk stays. A day's budget of writes and a drive's rated life do run out.
"""

from typing import Final, NamedTuple

from forebay.cli.view.figures import Change, Snapshot
from forebay.cli.view.units import duration, rate, size
from forebay.metrics.reading import total

FULL: Final = 0.95  # share of its cap from which a tier counts as full
_DAY_S: Final = 86_400.0
_SECONDS_MAX: Final = 100 * 365 * _DAY_S  # later counts as never


class RunOut(NamedTuple):
    """Something that runs out, and when."""

    what: str
    seconds: float
    sentence: str


def outlook(now: Snapshot, before: Snapshot | None) -> list[RunOut]:
    """What runs out within a hundred years, the first of it first."""
    change = Change(now, before)
    found = []
    for tier in now["tiers"]:
        found += _room(tier["name"], tier["used_bytes"], tier["cap_bytes"], change)
        found += _budget(tier["name"], change)
        found += _life(tier["name"], change)
    return sorted((each for each in found if each.seconds <= _SECONDS_MAX), key=lambda at: at[1])


def _room(name: str, used_bytes: int, cap_bytes: int, change: Change) -> list[RunOut]:
    """When a tier is full; if it is, how long a chunk stays (the dashboard has the same)."""
    came_s = change.rate("moved_bytes", tier=name, direction="store")
    if name == change.now["tiers"][0]["name"]:  # what lower tiers load comes into the first
        for lower in change.now["tiers"][1:]:
            came_s += change.rate("moved_bytes", tier=lower["name"], direction="load")
    if cap_bytes and used_bytes >= FULL * cap_bytes:
        sentence = f"{name} is full: older chunks make room for new ones"
        if came_s:
            stays = duration(used_bytes / came_s)
            sentence += f"; with {rate(came_s)} coming in, a chunk stays {stays}"
        return [RunOut(f"room in {name}", 0.0, sentence)]
    if change.before is None:  # how much it held at the start is unknown
        return []
    grown_s = (used_bytes - _used(name, change.before)) / change.seconds
    if grown_s <= 0:
        return []
    full_s = (cap_bytes - used_bytes) / grown_s
    left = size(cap_bytes - used_bytes)
    return [
        RunOut(f"room in {name}", full_s, f"{name} is full in {duration(full_s)} ({left} left)")
    ]


def _used(name: str, snapshot: Snapshot) -> int:
    return sum(tier["used_bytes"] for tier in snapshot["tiers"] if tier["name"] == name)


def _budget(name: str, change: Change) -> list[RunOut]:
    """When a day's budget of writes is spent, if the rate is above it."""
    budget_bytes = total(change.now, "write_budget_bytes", tier=name)
    written_s = change.rate("written_bytes", tier=name)
    if not budget_bytes or written_s * _DAY_S <= budget_bytes:
        return []
    left_bytes = max(0.0, budget_bytes - total(change.now, "write_budget_used_bytes", tier=name))
    spent_s = left_bytes / written_s
    when = f"is spent in {duration(spent_s)}" if left_bytes else "is spent"
    sentence = f"{name}: the day's budget of {size(budget_bytes)} of writes {when}"
    return [RunOut(f"writes to {name}", spent_s, sentence)]


def _life(name: str, change: Change) -> list[RunOut]:
    """When the drives reach their rated life."""
    rated_bytes = total(change.now, "rated_life_bytes", tier=name)
    written_s = change.rate("written_bytes", tier=name)
    if not rated_bytes or not written_s:
        return []
    written_bytes = total(change.now, "life_written_bytes", tier=name)
    ends_s = max(0.0, rated_bytes - written_bytes) / written_s
    sentence = f"{name}: the drives' rated life ends in {duration(ends_s)} at {rate(written_s)}"
    return [RunOut(f"life of {name}", ends_s, sentence)]
