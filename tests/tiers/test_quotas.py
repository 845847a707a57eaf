"""Quotas: caps hold at every step, floors are nobody else's, and the furthest above loses."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from forebay.tiers.quotas import Quota, Quotas

A, B, C = (bytes([number]) * 16 for number in range(3))
sizes = st.integers(1, 50)


@given(
    st.lists(st.tuples(st.sampled_from([A, B, C]), sizes), max_size=200),
    st.tuples(*[st.integers(0, 100)] * 3),
    st.tuples(*[st.integers(100, 300)] * 3),
)
def test_caps_and_floors_hold_whatever_is_wanted(
    wanted: list[tuple[bytes, int]], floors: tuple[int, ...], caps: tuple[int, ...]
) -> None:
    """A medium of 400 that holds every floor: whoever asks within its floor gets its room."""
    medium_bytes = 400
    limits = zip((A, B, C), floors, caps, strict=True)
    quotas = Quotas({tenant: Quota(floor, cap) for tenant, floor, cap in limits})
    held: list[tuple[bytes, int]] = []
    for tenant, size in wanted:
        before = {each: quotas.used_bytes(each) for each in (A, B, C)}
        used_bytes = sum(before.values())
        is_denied = False
        while not (quotas.fits(tenant, size) and used_bytes + size <= medium_bytes):
            able = quotas.losers(tenant, 1)
            victim = next((each for loser in able for each in held if each[0] == loser), None)
            if victim is None or not quotas.may_lose(*victim, tenant):
                is_denied = True
                break
            held.remove(victim)
            quotas.give(*victim)
            used_bytes -= victim[1]
        if not is_denied:
            held.append((tenant, size))
            quotas.take(tenant, size)
        for each, floor, cap in zip((A, B, C), floors, caps, strict=True):
            assert quotas.used_bytes(each) <= cap
            if each != tenant:
                assert quotas.used_bytes(each) >= min(before[each], floor)


def test_who_is_at_its_cap_makes_room_itself() -> None:
    quotas = Quotas({A: Quota(cap_bytes=10), B: Quota()})
    quotas.take(A, 10)
    quotas.take(B, 1000)
    assert quotas.losers(A, 1) == [A]
    assert not quotas.fits(A, 1)
    assert quotas.ever_fits(A, 10)
    assert not quotas.ever_fits(A, 11)


def test_the_furthest_above_its_floor_for_its_weight_loses_first() -> None:
    quotas = Quotas({A: Quota(50), B: Quota(0, None, 4), C: Quota(10)})
    for tenant, size in ((A, 90), (B, 100), (C, 10)):
        quotas.take(tenant, size)
    assert quotas.losers(B, 1) == [A, B], "C has no more than its floor"
    assert quotas.losers(C, 1) == [A, B, C], "but may lose its own"


def test_who_has_no_name_any_more_loses_before_all_others() -> None:
    quotas = Quotas({A: Quota()})
    quotas.take(A, 100)
    quotas.take(C, 1)
    assert quotas.losers(A, 1) == [C, A]


def test_parts_of_a_quota_are_never_more_than_it() -> None:
    quota = Quota(100, 1000, 3)
    parts = [quota.part(Fraction(1, 3)) for _ in range(3)]
    assert parts == [Quota(33, 333, 3)] * 3
    assert Quota(7).part(Fraction(1, 2)) == Quota(3)
