"""URLs of stores: where, how much, and one sentence about what cannot be meant."""

import pytest

from forebay.errors import SettingsError
from forebay.urls import RemoteUrl, parse_url


def test_a_url_says_where_and_how_much() -> None:
    found = parse_url("file:///mnt/a%20b/forebay?cap=1TiB&host=node-7")
    assert found == RemoteUrl("file", "/mnt/a b/forebay", 1 << 40, "node-7")
    assert found.place == "file:///mnt/a%20b/forebay"
    assert parse_url(str(found)) == found


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3:/bucket", "no store that is known"),
        ("/mnt/shared", "no store that is known"),
        ("file://[/mnt?cap=1GiB", "not a URL"),
        ("file:///mnt?cap", "not a URL"),
        ("file:///?cap=1GiB", "no directory"),
        ("file://server/mnt?cap=1GiB", "no directory"),
        ("file:///mnt#x?cap=1GiB", "no directory"),
        ("file:///mnt", "no cap"),
        ("file:///mnt?cap=1KiB", "too small"),
        ("file:///mnt?cap=much", "not a size"),
        ("file:///mnt?cap=1GiB&cap=2GiB", "given twice"),
        ("file:///mnt?cap=1GiB&ttl=1", "unknown"),
        ("file:///mnt?cap=1GiB&host=a/b", "other characters"),
    ],
)
def test_a_url_that_means_nothing_is_one_sentence(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as raised:
        parse_url(url)
    assert "\n" not in str(raised.value)
