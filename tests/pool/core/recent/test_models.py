"""What a namespace's model is called: by an engine that uses it, and no lie drives others out."""

from forebay.pool.core.recent.models import MODELS_MAX, ModelNames

OURS, THEIRS = b"o" * 32, b"t" * 32


def using(names: ModelNames, engine: str, namespace: bytes, model: str) -> None:
    names.described(engine, namespace, model)
    names.used(engine, namespace)


def test_an_engine_names_only_what_it_uses() -> None:
    names = ModelNames()
    names.described("liar", OURS, "a lie")
    names.used("liar", THEIRS)
    assert (names.get(OURS), names.get(THEIRS)) == ("", "")
    names.used("honest", OURS)
    names.described("honest", OURS, "ours")
    assert names.get(OURS) == "ours", "in whatever order"


def test_the_first_name_stays_until_nobody_uses_it() -> None:
    names = ModelNames()
    using(names, "first", OURS, "ours")
    using(names, "liar", OURS, "a lie")
    assert names.get(OURS) == "ours"
    names.left("first")
    assert names.get(OURS) == "ours", "what it has stored is still its model's"
    names.used("liar", OURS)
    assert names.get(OURS) == "a lie", "nobody else says anything"
    names.described("liar", THEIRS, "another")
    using(names, "back", OURS, "ours")
    assert names.get(OURS) == "ours"


def test_names_that_were_not_used_for_long_are_forgotten() -> None:
    names = ModelNames()
    using(names, "kept", OURS, "ours")
    for number in range(2 * MODELS_MAX):
        using(names, f"e{number}", number.to_bytes(32, "little"), "many")
        names.used("kept", OURS)
    assert len(names) == MODELS_MAX
    assert names.get(OURS) == "ours", "lately used"
    assert names.get(bytes(32)) == ""
