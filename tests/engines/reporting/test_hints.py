"""Whatever a caller says of its dialog, the hints are within their bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.reporting.hints import NO_HINTS, SESSION_LETTERS_MAX, Hints, hints_of
from forebay.identity.endings import PRIORITY_MAX, SECONDS_MAX, EndingClass
from forebay.identity.keys import ChainRoot

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("session", "ended", "returns_in_s", "keep_s", "store", "priority", "computed_tokens")


def test_every_field_is_taken() -> None:
    said = {
        "session": "build-7",
        "ended": "tool_call",
        "returns_in_s": 60,
        "keep_s": 600.5,
        "store": False,
        "priority": -1,
        "computed_tokens": 5500,
    }
    found = hints_of({"do_remote_prefill": False, "forebay": said})
    assert found == Hints(
        "build-7",
        EndingClass.TOOL_CALL,
        60.0,
        600.5,
        store=False,
        priority=-1,
        computed_tokens=5500,
    )


@pytest.mark.parametrize("params", [None, {}, [], "forebay", {"forebay": None}, {"forebay": []}])
def test_no_hints_are_none(params: Any) -> None:
    assert hints_of(params) == NO_HINTS


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_any_value_is_bounded(said: dict[str, Any]) -> None:
    hints = hints_of({"forebay": said})
    assert len(hints.session) <= SESSION_LETTERS_MAX
    assert 0 <= hints.returns_in_s <= SECONDS_MAX
    assert 0 <= hints.keep_s <= SECONDS_MAX
    assert abs(hints.priority) <= PRIORITY_MAX
    assert 0 <= hints.computed_tokens <= 1 << 31
    assert isinstance(hints.store, bool)
    assert isinstance(hints.ended, EndingClass)


def test_a_session_of_another_salt_or_model_is_another() -> None:
    roots = [ChainRoot(name * 32, 16, salt=salt) for name in (b"a", b"b") for salt in ("", "s")]
    hashes = {Hints(session).session_hash(root) for session in ("one", "two") for root in roots}
    assert len(hashes) == 8
    assert NO_HINTS.session_hash(roots[0]) == b""
