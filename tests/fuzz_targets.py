"""What reads bytes of others, for `make fuzz`: how it is read, and what the corpus begins with."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import xxhash
from tests.encryption_harness import KEYS, NAMES_WORD, NEW_WORD, OLD_WORD

from forebay.documents.bodies import marked, reordered
from forebay.documents.order import DocumentOrder
from forebay.errors import SettingsError
from forebay.gateway.config import read_config
from forebay.observe.http import parse_head
from forebay.pool import wire
from forebay.record import cipher, region
from forebay.record.forgotten import pack_forgotten, unpack_forgotten
from forebay.record.header import (
    HASH_BYTES,
    HEADER_BYTES,
    RecordHeader,
    mismatch,
    pack,
    payload_hash,
    record_bytes,
    unpack,
)
from forebay.record.keyring import Keyring, MasterKeys, StoreKeys
from forebay.record.region import Footer, Position, RegionHeader
from forebay.settings import build, from_file
from forebay.sys.memory import PAGE_BYTES
from forebay.testing.samples import single
from forebay.tiers.contract import UsedRecord
from forebay.tiers.disk.regions import data_keys
from forebay.tiers.disk.regions.data_keys import KeyTable, unpack_table
from forebay.tiers.remote.index import published
from forebay.tiers.remote.index.published import Publication, PublishedPack
from forebay.tiers.remote.index.used import pack_used, unpack_used
from forebay.tiers.remote.process import messages as child_messages
from forebay.urls import parse_url

ROOT: Final = Path(__file__).parent.parent
GOLDEN: Final = ROOT / "tests" / "golden"
_SAMPLE: Final = single("fuzzed", 100)
_KEYS: Final = StoreKeys(Keyring(KEYS))


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """One reader; an exception that it raises is a finding."""

    name: str
    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    rehashed: Callable[[bytes], bytes] = bytes  # with the hashes in it made right

    def corpus(self) -> list[bytes]:
        """What we write ourselves, and what was once found."""
        found = sorted((ROOT / "tests" / "fuzz" / self.name).glob("*"))
        return self.seeds() + [path.read_bytes() for path in found]


def _page_rehashed(data: bytes) -> bytes:
    """The first page, and the last one, with their hashes made right."""
    data = data.ljust(PAGE_BYTES, b"\0")
    end = PAGE_BYTES - HASH_BYTES
    data = data[:end] + xxhash.xxh3_128_digest(data[:end]) + data[PAGE_BYTES:]
    if len(data) >= 2 * PAGE_BYTES:
        last = data[-PAGE_BYTES:-HASH_BYTES]
        data = data[:-HASH_BYTES] + xxhash.xxh3_128_digest(last)
    return data


def _ends_rehashed(data: bytes) -> bytes:
    return data[:-HASH_BYTES] + xxhash.xxh3_128_digest(data[:-HASH_BYTES])


def _record(data: bytes) -> None:
    page, payload = memoryview(data)[:HEADER_BYTES], memoryview(bytearray(data[HEADER_BYTES:]))
    found = unpack(page)
    region.unpack_record(page, Position(1, 4096))
    if isinstance(found, RecordHeader):
        mismatch(found, _SAMPLE.name, _SAMPLE.length)
        if len(payload) >= found.length:
            cipher.opened(found, page, _KEYS, payload)
            cipher.opened(found, page, None, payload)


def _records() -> list[bytes]:
    header = RecordHeader(_SAMPLE.name, 100, payload_hash(_SAMPLE.payload))
    plain = bytearray(record_bytes(100))
    pack(header, memoryview(plain)[:HEADER_BYTES], Position(1, 4096).pack())
    plain[HEADER_BYTES : HEADER_BYTES + 100] = _SAMPLE.payload
    sealed = bytearray(record_bytes(100))
    key = _KEYS.current(_SAMPLE.name.tenant)
    assert key is not None
    source = memoryview(_SAMPLE.payload)
    cipher.seal(header, Position(1, 4096).pack(), key, source, memoryview(sealed))
    return [bytes(plain), bytes(sealed), (GOLDEN / "record-v1.bin").read_bytes()]


def _region(data: bytes) -> None:
    region.unpack_header(data[:PAGE_BYTES])
    footer = region.unpack_footer(data[-PAGE_BYTES:])
    if isinstance(footer, Footer):
        entries = region.unpack_contents(memoryview(bytearray(data[PAGE_BYTES:])), footer)
        if isinstance(entries, Iterator):
            list(entries)


def _regions() -> list[bytes]:
    header = RecordHeader(_SAMPLE.name, 100, payload_hash(_SAMPLE.payload))
    contents = region.pack_entry(header, 4096)
    footer = Footer(1, 1 << 20, 12288, 1, region.contents_hash(contents))
    whole = region.pack_header(RegionHeader(1, 1 << 20)) + contents + region.pack_footer(footer)
    return [whole, *(path.read_bytes() for path in sorted(GOLDEN.glob("region-*.bin")))]


def _tables() -> list[bytes]:
    entry = data_keys._Entry(
        b"t" * 16,
        b"i" * 16,
        is_current=True,
        master_id=b"m" * 16,
        wrapped=cipher.Wrapped(b"", b"", b""),
    )
    return [data_keys.pack_table(KeyTable(1, KEYS.check, (entry,)))]


def _used() -> list[bytes]:
    return [pack_used([UsedRecord(b"n" * 32, b"t" * 16, 0, b"k" * 16, 7)] * 2)]


def _publications() -> list[bytes]:
    packs = (PublishedPack(b"n" * 32, 5, bytes(published.ENTRY_BYTES)),)
    return [published.pack(Publication(1, 2, 3, packs, (7, 8)))]


def _messages(data: bytes) -> None:
    for reader in (wire.client_reader(), wire.pool_reader()):
        for at in range(0, len(data), wire.RECEIVE_BYTES):
            reader.feed(data[at : at + wire.RECEIVE_BYTES])
            if any(isinstance(each, wire.FrameError) for each in reader.messages()):
                break
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # as `Link` answers them
        child_messages.decode_answer(data)


def _golden_messages() -> list[bytes]:
    (path,) = GOLDEN.glob("protocol-*.json")
    answer = child_messages.encode(child_messages.Answer(3, None, 9))
    return [*map(bytes.fromhex, json.loads(path.read_text()).values()), answer]


def _settings(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(SettingsError):
            build([from_file(file.name)])


def _settings_seeds() -> list[bytes]:
    return [
        b'dram = "4GiB"\ndisk = ["/mnt/a:1TB", "/mnt/b:64MiB"]\nallow_uid = [1, 2]\n',
        b'remote = ["file:///mnt/s?cap=1TiB", "s3://bucket/prefix?cap=2GiB&region=x"]\n',
        b'encryption = "fd:3"\nmetrics_address = "[::1]:7411"\ntrace = "/a:1GiB"\nstrict = true\n',
    ]


def _gateway(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with contextlib.suppress(SettingsError):
            read_config(file.name)


def _gateways() -> list[bytes]:
    engine = b'[[engine]]\nname = "a"\nmodel = "m"\nurl = "http://127.0.0.1:8001"\n'
    gpu = b'[[gpu]]\nname = "g"\nhost_memory = "64GiB"\npatience_s = 30\n'
    swapped = b'gpu = "g"\nswap = "sleep"\ncommand = ["vllm", "serve"]\nweights = "8GiB"\n'
    key = b'[[key]]\nname = "team"\ntoken_sha256 = "%s"\n' % (b"ab" * 32)
    return [engine, b'listen = "0.0.0.0:8000"\n' + engine + key, gpu + engine + swapped]


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A reader of text, whose answer to nonsense is a SettingsError."""

    def reads(data: bytes) -> None:
        with contextlib.suppress(SettingsError):
            read(data.decode("latin-1"))

    return reads


def _requests() -> list[bytes]:
    return [
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:7411\r\nAuthorization: Bearer abc",
        b"HEAD /api/requests?after=1&last=2 HTTP/1.0\r\nHost: [::1]",
    ]


def _documents(data: bytes) -> None:
    members = marked(data)
    if members is None or isinstance(members, str):
        return
    for member in ("messages", "prompt"):
        reordered(members, member, DocumentOrder(2))


def _bodies() -> list[bytes]:
    part = '{"type": "text", "text": "a b"}'
    return [
        b'{"prompt": "head a b\\n c", "forebay_documents": ["a b", "c"], "cache_salt": "s"}',
        b'{"messages": [{"role": "user", "content": "b a"}], "forebay_documents": ["b", "a"]}',
        f'{{"messages": [{{"content": [{part}, {part}]}}], "forebay_documents": ["a b"]}}'.encode(),
    ]


TARGETS: Final = {
    target.name: target
    for target in (
        FuzzTarget("record", _record, _records, _page_rehashed),
        FuzzTarget("region", _region, _regions, _page_rehashed),
        FuzzTarget("keys", unpack_table, _tables, _page_rehashed),
        FuzzTarget("used", unpack_used, _used, _ends_rehashed),
        FuzzTarget(
            "forgotten",
            unpack_forgotten,
            lambda: [pack_forgotten([b"t" * 16, b"u" * 16]), pack_forgotten([])],
            _ends_rehashed,
        ),
        FuzzTarget("gateway", _gateway, _gateways),
        FuzzTarget("index", published.unpack, _publications, _ends_rehashed),
        FuzzTarget("messages", _messages, _golden_messages),
        FuzzTarget("settings", _settings, _settings_seeds),
        FuzzTarget(
            "key-text",
            _text(MasterKeys.parse),
            lambda: [f"{NAMES_WORD} {OLD_WORD}\n{NEW_WORD} # new".encode()],
        ),
        FuzzTarget(
            "url", _text(parse_url), lambda: [b"file:///mnt/s?cap=1TiB", b"s3://b/p?cap=1GB"]
        ),
        FuzzTarget("http", parse_head, _requests),
        FuzzTarget("documents", _documents, _bodies),
    )
}
