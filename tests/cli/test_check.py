"""`forebay check`: finds every kind of damage, changes nothing unasked, mends when asked."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import main
from forebay.record import header as record
from forebay.record.header import ROOT, RecordName
from forebay.sys.memory import PAGE_BYTES
from forebay.tiers.blocking import load, store
from forebay.tiers.contract import Hit, Stored
from forebay.tiers.disk import Directory, DiskTier, Options

CAP_BYTES = 4 << 20
REGION_BYTES = 256 << 10
PAYLOAD_BYTES = 20_000
RECORD_BYTES = record.record_bytes(PAYLOAD_BYTES)
RECORDS = 20  # two regions


def name_of(number: int) -> RecordName:
    return RecordName(b"n" * 32, 0, bytes([number + 1]) * 32, ROOT)


def payload_of(number: int) -> bytes:
    return bytes([number % 251, 7, number % 13]) * (PAYLOAD_BYTES // 3) + b"12"


def opened(path: Path) -> DiskTier:
    return DiskTier.open([Directory(str(path), CAP_BYTES)], Options(region_bytes=REGION_BYTES))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pool"
    path.mkdir(mode=0o700)
    tier = opened(path)
    for number in range(RECORDS):
        assert store(tier, name_of(number), payload_of(number)) == Stored()
    tier.close(300)
    assert len(regions(path)) >= 2
    return path


def regions(path: Path) -> list[Path]:
    return sorted(path.glob("region-*"))


def check(path: Path, *arguments: str) -> int:
    return main(["check", str(path), *arguments])


def report(path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = check(path, "--json", *arguments)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (0 if found["clean"] else 1)
    return found


def kinds(found: dict[str, Any]) -> list[str]:
    return [finding["kind"] for finding in found["findings"]]


def change(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    with path.open("rb") as file:
        file.seek(offset)
        byte = file.read(1)
    change(path, offset, bytes([byte[0] ^ 1]))


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def unseal(path: Path) -> None:
    change(path, path.stat().st_size - PAGE_BYTES, bytes(PAGE_BYTES))


def found_again(path: Path) -> int:
    tier = opened(path)
    hits = 0
    for number in range(RECORDS):
        outcome, payload = load(tier, name_of(number), PAYLOAD_BYTES)
        if isinstance(outcome, Hit):
            assert payload == payload_of(number)
            hits += 1
    tier.close(300)
    return hits


def test_a_sound_directory_is_clean(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(pool)
    found = report(pool, capsys)
    assert (found["records"], found["findings"]) == (RECORDS, [])
    assert found["payload_bytes"] == RECORDS * PAYLOAD_BYTES
    assert check(pool) == 0
    assert "20 sound records" in capsys.readouterr().out
    assert content(pool) == before


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "offset",
    [PAGE_BYTES + 9, PAGE_BYTES + 3000, 2 * PAGE_BYTES, 2 * PAGE_BYTES + PAYLOAD_BYTES - 1],
)
def test_a_flipped_bit_is_found_and_only_that_record_dropped(
    pool: Path, capsys: pytest.CaptureFixture[str], offset: int, *, sealed: bool
) -> None:
    region = regions(pool)[0]
    if not sealed:
        unseal(region)
    flip(region, offset)
    before = content(pool)
    found = report(pool, capsys)
    assert kinds(found) == ["damaged record"]
    assert found["findings"][0]["offset"] == PAGE_BYTES
    assert found["records"] == RECORDS - 1
    assert content(pool) == before, "nothing is changed without --repair"
    assert report(pool, capsys, "--repair")["remaining"] == []
    assert report(pool, capsys)["records"] == RECORDS - 1
    assert found_again(pool) == RECORDS - 1


def test_a_record_of_another_key_in_its_place_is_found(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    region = regions(pool)[0]
    data = region.read_bytes()
    second = PAGE_BYTES + RECORD_BYTES
    change(region, PAGE_BYTES, data[second : second + RECORD_BYTES])
    assert kinds(report(pool, capsys)) == ["damaged record"]
    assert check(pool, "--repair") == 0
    assert "repaired: " in capsys.readouterr().out


@pytest.mark.parametrize("place", ["table", "footer"])
def test_a_bad_table_is_found_and_built_anew(
    pool: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    region = regions(pool)[0]
    size = region.stat().st_size
    table = region.read_bytes().rfind(name_of(0).key, 0, size - PAGE_BYTES)
    flip(region, table if place == "table" else size - PAGE_BYTES + 2)
    assert kinds(report(pool, capsys)) == ["bad table of contents"]
    found = report(pool, capsys, "--repair")
    assert (found["records"], found["remaining"]) == (RECORDS, [])
    assert found_again(pool) == RECORDS


def test_a_table_that_lies_is_found(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hashes that hold do not help it: the records do not agree."""
    from forebay.record import region as layout

    region = regions(pool)[0]
    data = region.read_bytes()
    footer = layout.unpack_footer(data[-PAGE_BYTES:])
    assert isinstance(footer, layout.Footer)
    start = footer.contents_offset
    contents = bytearray(data[start : start + footer.records * layout.ENTRY_BYTES])
    contents[64] ^= 1  # the first entry's parent
    contents[layout.ENTRY_BYTES + 80] = 1  # the second entry's page: the first record's
    contents[2 * layout.ENTRY_BYTES + 87] = 16  # the third entry's length: 2^28 more
    change(region, start, bytes(contents))
    proven = footer._replace(contents_hash=layout.contents_hash(bytes(contents)))
    change(region, len(data) - PAGE_BYTES, layout.pack_footer(proven))
    found = report(pool, capsys)
    assert kinds(found) == ["damaged record"] * 3
    assert report(pool, capsys, "--repair")["records"] == RECORDS - 3


@pytest.mark.parametrize(
    ("name", "size_bytes", "kind"),
    [
        ("region-00000000000000ff", 1 << 40, "foreign file"),
        ("region-00000000000000ff", (256 << 20) + PAGE_BYTES, "foreign file"),
        ("region-ffffffffffffffff", REGION_BYTES, "bad region header"),
        ("region-00000000000000ff", 100, "bad region header"),
    ],
)
def test_t60_what_a_pool_skips_is_named(
    pool: Path, capsys: pytest.CaptureFixture[str], name: str, size_bytes: int, kind: str
) -> None:
    """F4, F5, F9: also a sparse TiB, of which nothing is read."""
    from forebay.record import region as layout

    path = pool / name
    generation = int(name.removeprefix("region-"), 16)
    path.write_bytes(layout.pack_header(layout.RegionHeader(generation, REGION_BYTES)))
    path.chmod(0o600)
    os.truncate(path, size_bytes)
    found = report(pool, capsys)
    assert [(each["file"], each["kind"]) for each in found["findings"]] == [(name, kind)]
    assert found["records"] == RECORDS
    report(pool, capsys, "--repair")
    assert path.exists() == (kind == "foreign file"), "what is ours and of no use is removed"
    assert found_again(pool) == RECORDS


def test_a_bad_region_header_is_found_and_written_anew(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(regions(pool)[0], 3)
    assert kinds(report(pool, capsys)) == ["bad region header"]
    assert report(pool, capsys, "--repair")["clean"]
    assert report(pool, capsys)["records"] == RECORDS


def test_a_region_cut_short_keeps_what_is_sound(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    region = regions(pool)[0]
    os.truncate(region, PAGE_BYTES + 4 * RECORD_BYTES - PAGE_BYTES)
    found = report(pool, capsys)
    assert kinds(found)[0] == "wrong size"
    kept = report(pool, capsys, "--repair")
    assert kept["clean"]
    assert kept["records"] == found["records"]


@pytest.mark.parametrize("size", [5000, PAGE_BYTES, PAGE_BYTES + RECORD_BYTES])
def test_a_region_with_nothing_to_save_is_removed(
    pool: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    region = regions(pool)[0]
    os.truncate(region, size)
    assert report(pool, capsys, "--repair")["clean"]
    assert region not in regions(pool)


def test_a_hole_left_by_a_killed_writer_is_no_damage(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    region = regions(pool)[0]
    unseal(region)
    change(region, PAGE_BYTES, bytes(RECORD_BYTES))
    assert report(pool, capsys)["clean"]


def test_a_record_erased_on_purpose_is_no_damage(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = opened(pool)
    assert tier.erase(b"n" * 32) == RECORDS
    tier.close(300)
    found = report(pool, capsys)
    assert (found["clean"], found["records"], found["erased"]) == (True, 0, 0)
    for region in regions(pool):
        unseal(region)
    assert report(pool, capsys)["erased"] == RECORDS


def test_a_record_erased_by_a_process_that_died_is_no_damage(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It had no time to write a table without it."""
    change(regions(pool)[0], PAGE_BYTES, record.erased_page())
    found = report(pool, capsys)
    assert (found["clean"], found["records"], found["erased"]) == (True, RECORDS - 1, 1)


def test_what_is_not_ours_is_named_and_left_alone(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pool / "notes.txt").write_text("mine")
    (pool / "lost+found").mkdir()
    (pool / "region-00000000000000f0").write_bytes(b"garbage!" * 8192)
    (pool / "region-00000000000000f1").mkdir()
    os.mkfifo(pool / "region-00000000000000f2")
    (pool / "region-00000000000000f3").symlink_to("notes.txt")
    (pool / "region-00000000000000f4").write_bytes(bytes(1 << 16))  # blank: never begun
    (pool / "region-00000000000000f4").chmod(0o600)
    found = report(pool, capsys, "--repair")
    assert sorted(finding["file"][-2:] for finding in found["remaining"]) == [
        "f0",
        "f1",
        "f2",
        "f3",
        "xt",
    ]
    assert (pool / "notes.txt").read_text() == "mine"


def test_another_version_is_left_alone(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    region = regions(pool)[0]
    flip(region, 8)
    before = region.read_bytes()
    assert kinds(report(pool, capsys, "--repair")) == ["another format version"]
    assert region.read_bytes() == before


def test_unsafe_modes_are_found_and_mended(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool.chmod(0o777)
    regions(pool)[0].chmod(0o644)
    assert kinds(report(pool, capsys)) == ["unsafe mode", "unsafe mode"]
    assert report(pool, capsys, "--repair")["clean"]
    assert pool.stat().st_mode & 0o777 == 0o700
    assert regions(pool)[0].stat().st_mode & 0o777 == 0o600


def test_many_findings_are_counted_not_all_printed(
    pool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(60):
        (pool / f"foreign-{number}").touch()
    assert check(pool) == 1
    out = capsys.readouterr().out
    assert "and 10 more; --json lists all" in out
    assert out.endswith("60 things are wrong\n")


def test_a_directory_in_use_is_refused(pool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tier = opened(pool)
    assert check(pool) == 2
    assert capsys.readouterr().err == f"forebay: {pool} is in use by a pool; stop it first.\n"
    tier.close(300)
    assert check(pool) == 0


def test_a_copy_without_its_lock_can_be_checked(pool: Path, tmp_path: Path) -> None:
    shutil.copytree(pool, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    assert check(tmp_path / "copy") == 0


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "link", "bad lock"])
def test_what_is_no_pool_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "pool"
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(tmp_path)
    elif kind != "missing":
        path.mkdir()
    if kind == "bad lock":
        (path / "lock").symlink_to("nowhere")
    assert check(path) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"forebay: {path} ")
    assert err.count("\n") == 1
