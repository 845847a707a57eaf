"""Settings: flags before variables before the file; what cannot be meant is one sentence."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from forebay import settings
from forebay.errors import SettingsError
from forebay.settings import (
    DiskSetting,
    NumaSetting,
    Settings,
    build,
    from_environment,
    from_file,
    from_flags,
    parse_numa,
    parse_trace,
)


def refused(*sources: settings.SettingsSource) -> str:
    with pytest.raises(SettingsError) as caught:
        build(sources)
    return str(caught.value)


def test_few_fields_each_with_a_sentence() -> None:
    assert len(fields(Settings)) <= 32
    for name, doc, default in settings.documentation():
        assert doc.endswith("."), name
        assert default, name
    with pytest.raises(FrozenInstanceError):
        Settings().dram = 0  # type: ignore[misc]


def test_flags_go_before_variables_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "forebay.toml"
    path.write_text('dram = "1GiB"\nmin_tokens = 64\nread_depth = 2\nverify_dram = true\n')
    found = build(
        [
            from_flags({"dram": "3GiB", "min_tokens": None}),
            from_environment({"FOREBAY_DRAM": "2GiB", "FOREBAY_MIN_TOKENS": "128", "HOME": "/"}),
            from_file(str(path)),
        ]
    )
    assert (found.dram, found.min_tokens, found.read_depth) == (3 << 30, 128, 2)
    assert found.verify_dram is True
    assert found.write_depth == Settings().write_depth


def test_a_list_is_replaced_whole_never_merged() -> None:
    flags = from_flags({"disk": ["/a:1GiB"]})
    variables = from_environment({"FOREBAY_DISK": "/b:1GiB,/c:x y:2TB"})
    assert build([flags, variables]).disk == (DiskSetting("/a", 1 << 30),)
    two = (DiskSetting("/b", 1 << 30), DiskSetting("/c:x y", 2 * 10**12))
    assert build([from_environment({"FOREBAY_DISK": "/b:1GiB,/c:x y:2TB"})]).disk == two


def test_an_unknown_name_is_refused_with_its_origin_and_the_nearest_one(tmp_path: Path) -> None:
    assert refused(from_environment({"FOREBAY_DRAMM": "1"})) == (
        "FOREBAY_DRAMM is not a setting; did you mean FOREBAY_DRAM?"
    )
    path = tmp_path / "forebay.toml"
    path.write_text("min_token = 3\n")
    sentence = refused(from_file(str(path)))
    assert sentence == f"{path}: min_token is not a setting; did you mean {path}: min_tokens?"
    assert refused(from_environment({"FOREBAY_POOL": "1"})) == (
        "FOREBAY_POOL is not a setting; docs/settings.md lists them all."
    )
    extra = settings.SettingsSource({"zzz": 1}, "kv_connector_extra_config['{}']".format)
    assert refused(extra).startswith("kv_connector_extra_config['zzz'] is not a setting;")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dram", "many"),
        ("dram", -1),
        ("dram", True),
        ("dram", "9999999TiB"),
        ("min_tokens", "-1"),
        ("min_tokens", "1.5"),
        ("min_tokens", "9" * 5000),
        ("read_depth", 0),
        ("load_deadline_ms", "nan"),
        ("load_deadline_ms", "soon"),
        ("load_deadline_ms", True),
        ("verify_dram", "maybe"),
        ("realm", 3),
        ("socket", "a\0b"),
        ("disk", 7),
        ("disk", ["/a"]),
        ("disk", [":1GiB"]),
        ("disk", ["/a:0"]),
        ("disk", ["/a:1GiB", "/a/:2GiB"]),
        ("disk", [7]),
        ("remote", 7),
        ("remote", ["/mnt/shared"]),
        ("remote", ["file:///mnt/shared"]),
        ("remote", ["gs://bucket?cap=1TiB"]),
        ("remote", ["file:///a?cap=1GiB", "file:///a/?cap=2GiB"]),
        ("allow_uid", "root"),
        ("numa", "near"),
        ("numa", "0,auto"),
        ("numa", "1000"),
        ("numa", "3b:00.0"),
        ("numa", ""),
        ("numa", True),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(name: str, value: Any) -> None:
    sentence = refused(from_flags({name: value}))
    assert sentence.startswith("--" + name.replace("_", "-") + ": ")
    assert sentence.endswith((".", ")."))
    assert "\n" not in sentence
    assert len(sentence) < 250


def test_a_count_is_written_as_people_write_it() -> None:
    for written, count in {"32k": 32_000, "32Ki": 32_768, "0.6M": 600_000, "512": 512}.items():
        assert build([from_environment({"FOREBAY_MIN_TOKENS": written})]).min_tokens == count
    with pytest.raises(SettingsError, match="'1k' is not the number of a user"):
        build([from_environment({"FOREBAY_ALLOW_UID": "1k"})])


def test_typed_values_are_taken_as_they_are() -> None:
    extra = {"dram": 8 << 20, "allow_uid": [1, 2], "linger_s": 0, "keep_on_reset": False}
    found = build([settings.SettingsSource(extra, str)])
    assert (found.dram, found.allow_uid, found.linger_s) == (8 << 20, (1, 2), 0.0)
    assert build([from_environment({"FOREBAY_ALLOW_UID": "1000"})]).allow_uid == (1000,)
    assert build([from_environment({"FOREBAY_HUGE_PAGES": "off"})]).huge_pages is False


@pytest.mark.parametrize("text", [b"dram = ", b"\xff\xfe", b"[disk]\na = 1\n"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "forebay.toml"
    path.write_bytes(text)
    with pytest.raises(SettingsError) as caught:
        build([from_file(str(path))])
    assert str(path) in str(caught.value)
    with pytest.raises(SettingsError, match="No such file"):
        from_file(str(tmp_path / "none.toml"))


def test_what_happens_without_a_pool_is_one_of_three() -> None:
    assert build([from_flags({"no_pool": "serve"})]).no_pool == "serve"
    said = "--no-pool: 'maybe' is none of start, fail, serve."
    assert refused(from_flags({"no_pool": "maybe"})) == said


def test_a_trace_may_say_where_it_ends() -> None:
    assert parse_trace("/tmp/a:b/trace") == ("/tmp/a:b/trace", 1 << 30)
    assert parse_trace("trace.jsonl:5MiB") == ("trace.jsonl", 5 << 20)
    assert build([from_flags({"trace": "t:1KiB"})]).trace == "t:1KiB"
    assert "no space" in refused(from_flags({"trace": "t:0"}))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("auto", NumaSetting()),
        ("OFF", NumaSetting(is_on=False)),
        (1, NumaSetting(nodes=(1,))),
        ("2, 0,2", NumaSetting(nodes=(0, 2))),
        ("0000:3B:00.0,0000:b1:00.0", NumaSetting(gpus=("0000:3b:00.0", "0000:b1:00.0"))),
    ],
)
def test_nodes_and_gpus_are_told_apart(said: object, found: NumaSetting) -> None:
    assert parse_numa(build([from_flags({"numa": said})]).numa) == found


def test_a_bucket_of_two_servers_is_two_stores() -> None:
    bucket = "s3://kv/forebay?cap=1GiB"
    urls = [bucket, *(f"{bucket}&endpoint=https://{host}:9000" for host in ("one", "two"))]
    assert len(build([from_flags({"remote": urls})]).remote) == len(urls)
    assert "named twice" in refused(from_flags({"remote": [*urls, urls[1]]}))
