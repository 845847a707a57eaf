"""What a record of one group of layers is worth without others: the group's rule.

A group is a set of layers that share a block table in the engine. Every chunk of tokens has a
record for each group, and each group has a rule that says which records a hit needs. Models of full
attention have one group and one rule. Nothing else in the pool or in a tier assumes an order of
records: they follow `RecordName.parent`, which is given here.
"""

from enum import StrEnum


class GroupRule(StrEnum):
    """Which records of a group a hit of n chunks needs."""

    FULL = "full"  # all of [0, n): full attention reads everything before it

    def parent_of(self, previous: bytes) -> bytes:
        """The record without which the one after `previous` is of no use; ROOT: none."""
        return previous


def rule_of(group: int) -> GroupRule:  # noqa: ARG001 - one rule holds for every group so far
    """The rule of a group, by its number in the engine."""
    return GroupRule.FULL
