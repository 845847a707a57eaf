"""The order of documents: more of them are prefix hits, ties are settled, tables have limits."""

import random

import pytest
from tests.document_trace import HeldPrefixes, ZipfTrace

from forebay.documents import popularity
from forebay.documents.order import DocumentOrder
from forebay.documents.popularity import UNKNOWN, Popularity

CHUNK = 256  # tokens, as a pool's


@pytest.mark.parametrize(
    "trace",
    [ZipfTrace(10_000, 5), ZipfTrace(1_000, 10), ZipfTrace(10_000, 10, topic=20)],
    ids=["large", "small", "topics"],
)
def test_twice_as_many_tokens_are_prefix_hits(trace: ZipfTrace) -> None:
    """A bar of this repository: at least twice as many as in the order of retrieval."""
    order = DocumentOrder()
    retrieved, ordered = HeldPrefixes(CHUNK), HeldPrefixes(CHUNK)
    for asked in trace:
        retrieved.ask(asked)
        arranged = order.arrange([str(each) for each in asked])
        ordered.ask([asked[rank - 1] for rank in arranged.ranks])
    print(f"retrieved {retrieved.share:.3f}, by popularity {ordered.share:.3f}")
    assert ordered.all == retrieved.all
    assert ordered.share >= 2 * retrieved.share


def test_the_most_popular_come_first_and_ranks_say_where_they_were() -> None:
    order = DocumentOrder()
    order.arrange(["b", "a"])
    order.arrange(["c", "b"])
    order.arrange(["b"])
    order.arrange(["c"])
    found = order.arrange(["new", "a", "c", "b"])
    assert found.documents == ("b", "c", "a", "new")
    assert found.ranks == (4, 3, 2, 1)
    assert found.note == "Ranks of the documents above by relevance, in their order: 4, 3, 2, 1."
    assert order.arrange(found.documents).note == ""
    assert order.arrange([]) == ((), ())


def test_ties_are_the_same_whatever_the_order_and_the_process() -> None:
    documents = [f"document {number}" for number in range(20)]
    wanted = DocumentOrder().arrange(documents).documents
    assert wanted != tuple(documents)
    for seed in range(5):
        mixed = random.Random(seed).sample(documents, len(documents))
        assert DocumentOrder().arrange(mixed).documents == wanted
    twice = DocumentOrder().arrange(["same", "other", "same"])
    assert sorted(twice.ranks) == [1, 2, 3]
    assert [rank for rank in twice.ranks if rank != 2] == [1, 3]
    assert len(DocumentOrder().arrange(["\ud800", "\udfff"]).documents) == 2


def test_one_scope_tells_nothing_of_another() -> None:
    order, fresh = DocumentOrder(), DocumentOrder()
    pair = fresh.arrange(["x", "y"]).documents
    for _ in range(9):
        order.arrange([pair[1]], b"one")
    assert order.arrange(["x", "y"], b"one").documents == pair[::-1]
    assert order.arrange(["x", "y"], b"other").documents == pair
    assert order.arrange(["x", "y"]).documents == pair


def test_what_was_popular_long_ago_is_less_so_now() -> None:
    table = Popularity()
    for _ in range(4):
        table.count([1])
    for _ in range(3 * popularity.HALF_LIFE):
        table.count([])
    for _ in range(2):
        table.count([2])
    assert table.score(2) > table.score(1) > table.score(3) == UNKNOWN
    for _ in range(10**5):  # no number grows beyond what a float can have
        table.count([1, 2])
    assert 0 < table.score(2) - table.score(1) < 1


def test_a_table_never_grows_beyond_its_limit_and_keeps_the_popular() -> None:
    table = Popularity(100)
    for number in range(10_000):
        table.count([number % 20, 1000 + number])
        assert len(table) <= 100
    assert all(table.score(number) > UNKNOWN for number in range(20))
    smallest = Popularity(1)
    for number in range(5):
        smallest.count([number])
        assert len(smallest) == 1


def test_a_table_holds_no_text_and_names_differ_by_process() -> None:
    one, other = Popularity(), Popularity()
    assert one.name(b"digest", b"") == one.name(b"digest", b"")
    assert one.name(b"digest", b"") != one.name(b"digest", b"s")
    assert one.name(b"digest", b"") != other.name(b"digest", b"")
    order = DocumentOrder()
    order.arrange(["patient's name"])
    assert "patient" not in repr(vars(order._popularity))
