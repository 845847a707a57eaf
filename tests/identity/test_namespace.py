"""Namespaces: one fingerprint over all that shapes bytes, without two ways to say the same."""

from hypothesis import assume, given
from hypothesis import strategies as st

from forebay.identity.namespace import fingerprint

values = st.one_of(
    st.binary(max_size=8), st.text(max_size=8), st.integers(-(2**70), 2**70), st.booleans()
)
fields = st.dictionaries(st.text(max_size=6), values, max_size=6)
Fields = dict[str, bytes | str | int | bool]


def typed(found: Fields) -> set[tuple[str, str, object]]:
    return {(name, type(value).__name__, value) for name, value in found.items()}


def test_golden_namespace() -> None:
    found = fingerprint({"model": "m", "weights": b"\1\2", "tp": 4, "packed": True})
    assert found.hex() == "215b42265e6955a356ecd22e58da1323e40b9f7f1b09472c3c86c7f940d5ceda"


@given(fields, st.randoms(use_true_random=False))
def test_order_does_not_matter(found: Fields, draw: st.DataObject) -> None:
    shuffled = list(found.items())
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fingerprint(dict(shuffled)) == fingerprint(found)


@given(fields, fields)
def test_t10_whatever_differs_gives_another_namespace(one: Fields, other: Fields) -> None:
    assume(typed(one) != typed(other))
    assert fingerprint(one) != fingerprint(other)


def test_t10_no_two_ways_to_say_the_same() -> None:
    twins: list[Fields] = [
        {},
        {"": ""},
        {"a": "1"},
        {"a": 1},
        {"a": True},
        {"a": "True"},
        {"a": b"1"},
        {"a1": ""},
        {"a": "", "1": ""},
        {"a": "s1"},
        {"a": "1", "b": ""},
        {"ä": "1"},
        {"a": "\udcff"},
    ]
    assert len({fingerprint(twin) for twin in twins}) == len(twins)
