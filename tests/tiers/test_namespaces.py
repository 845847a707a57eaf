"""The books of namespaces: what came and went costs nothing, and a look at them is bounded."""

from forebay.tiers.contract import NamespaceUsage
from forebay.tiers.namespaces import LEFT_MAX, SCANNED_MAX, NamespaceTable


def name(number: int) -> bytes:
    return number.to_bytes(32, "little")


def enter(table: NamespaceTable, number: int, size_bytes: int) -> int:
    row = table.refer(name(number))
    table.records[row] += 1
    table.payload_bytes[row] += size_bytes
    return row


def leave(table: NamespaceTable, row: int, size_bytes: int) -> None:
    table.records[row] -= 1
    table.payload_bytes[row] -= size_bytes
    table.release(row)


def test_namespaces_that_came_and_went_leave_no_row() -> None:
    table = NamespaceTable()
    for number in range(3 * LEFT_MAX):
        leave(table, enter(table, number, 10), 10)
    assert len(table) == 0
    assert len(table.records) == 1, "a number is used again"
    assert table.largest(10) == []
    left = table.usage()
    assert list(left) == [name(number) for number in range(2 * LEFT_MAX, 3 * LEFT_MAX)]
    assert set(left.values()) == {NamespaceUsage()}


def test_a_namespace_stays_while_anything_refers_to_it() -> None:
    """A record that is being written counts nowhere, and yet has its namespace."""
    table = NamespaceTable()
    pending = table.refer(name(1))
    row = enter(table, 1, 10)
    assert row == pending
    leave(table, row, 10)
    assert table.largest(10) == [], "it has nothing"
    assert list(table.numbers) == [name(1)]
    table.release(pending)
    assert not table.numbers


def test_the_largest_of_many_are_found_a_few_thousand_at_a_time() -> None:
    table = NamespaceTable()
    for number in range(3 * SCANNED_MAX):
        enter(table, number, 10)
    last = 3 * SCANNED_MAX - 1
    enter(table, last, 1000)
    enter(table, 0, 500)
    assert table.largest(2)[0] == name(0), "one call does not look at all of them"
    table.largest(2)
    assert table.largest(2) == [name(last), name(0)]
    assert table.largest(2) == [name(last), name(0)], "what was found is remembered"
    assert table.usage_of([name(last)]) == [NamespaceUsage(2, 1010)]
