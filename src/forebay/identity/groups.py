"""Group rules: which other records a record of a group needs to be of use.

A group is the layers of a model that look equally far back. Every chunk of tokens has a record for
group 0, whose layers look back to the beginning; models of full attention have no other group. In
groups whose layers do not look back that far, a hit of n chunks needs only the last records before
n. Nothing else in the pool or in a tier assumes an order of records: they follow
`RecordName.parent`, which is defined here. The engine knows which records a hit needs
(`forebay.engines.groups`).
"""

from enum import StrEnum

from forebay.record.header import ROOT


class GroupRule(StrEnum):
    """Which records of a group a hit of n chunks needs."""

    FULL = "full"  # all of [0, n): full attention reads everything before it
    LOCAL = "local"  # the last ones before n: each is of use without those before it

    def parent_of(self, previous: bytes) -> bytes:
        """The parent of the record that follows `previous`; ROOT if it needs none."""
        return previous if self is GroupRule.FULL else ROOT


def rule_of(group: int) -> GroupRule:
    """The rule of a group, by its number."""
    return GroupRule.FULL if group == 0 else GroupRule.LOCAL
