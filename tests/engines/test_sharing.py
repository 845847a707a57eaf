"""What engines say of sharing is what the pool's metric has labels for."""

from forebay.engines.sharing import SharingState
from forebay.metrics.labels import SHARING_WORDS


def test_every_state_is_a_label() -> None:
    assert {state.value for state in SharingState} < set(SHARING_WORDS)
