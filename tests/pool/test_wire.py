"""Frames: every message has golden bytes, and any bytes are safe input (T39, T40)."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.pool import messages, wire
from forebay.pool.messages import FRAME_BYTES_MAX, ClientMessage, PoolMessage
from forebay.pool.wire import FrameError

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "protocol-v6.json"
KEY = bytes(range(32))
SPACE = bytes(reversed(range(32)))
RUN = messages.ChunkRun(SPACE, 0, bytes(32), KEY, 4096, 1, KEY[:16])
TENANT = messages.TenantRow("search", KEY[:16], 1 << 30, 1 << 34, 0, -1, 2, 1 << 20, -1)
OUTCOME = messages.Outcome(
    "chatcmpl-1", "loaded", "", 7, 700, 64, 640, [320, 256], 60, 0.2, 3.5, 8.0, 57.6, False
)
END = messages.AnswerEnd(KEY[:16], 17, 2, 300, 9000, 12, KEY[16:], KEY[:8], 60.0, 600.0, 1)
CLIENT: dict[str, ClientMessage] = {
    "Hello": messages.Hello(messages.PROTOCOL, "e7b1"),
    "Lookup": messages.Lookup(7, SPACE, 0, KEY[:16], KEY[16:], KEY[:8], 5.5e9, KEY[16:], 1),
    "Ask": messages.Ask(7, 0, 1, 2000, stream=False, local=[messages.KeyRun(1, KEY[16:])]),
    "Release": messages.Release(7, [0]),
    "Cancel": messages.Cancel(7),
    "Settled": messages.Settled("e7b1"),
    "Reserve": messages.Reserve(3, [RUN]),
    "Commit": messages.Commit(11, [4096, 8192], KEY),
    "Abort": messages.Abort(11, [4096]),
    "Describe": messages.Describe(
        "Qwen3-8B", "vLLM 0.32.0", "sharing", "", SPACE, 64, gpu_cache_bytes=1 << 33
    ),
    "RequestOutcomes": messages.RequestOutcomes([OUTCOME]),
    "AnswersEnded": messages.AnswersEnded([END]),
    "RequestsQuery": messages.RequestsQuery("chatcmpl-1", 10, 0),
    "StatsQuery": messages.StatsQuery(),
    "Resize": messages.Resize(-1, [("/mnt/nvme/forebay", 1 << 40)]),
    "Clear": messages.Clear("3fa94c1d"),
    "Rotate": messages.Rotate(),
    "SetTenants": messages.SetTenants([TENANT]),
    "Forget": messages.Forget("search"),
}
POOL: dict[str, PoolMessage] = {
    "Welcome": messages.Welcome(
        messages.PROTOCOL, 11, 1 << 40, 1 << 27, [1 << 30, 1 << 28], [7], ["dram", "disk"], KEY
    ),
    "Grown": messages.Grown(11, 1 << 28),
    "Refused": messages.Refused("why not."),
    "Found": messages.Found(7, 2, 0, b"\x01", [messages.StoreRun(1, 1, 12.5, 2.5e9)], True),
    "Promise": messages.Promise(7, 11, 0, 1, [4096], [4000], bytes(16), [1]),
    "Ready": messages.Ready(7, 11, 0, 4096, 4000, KEY, 1),
    "Reserved": messages.Reserved(3, 11, [8192, -1, -2, -3]),
    "Committed": messages.Committed(2),
    "RequestsReply": messages.RequestsReply(b"{}"),
    "StatsReply": messages.StatsReply(b"{}"),
    "AdminReply": messages.AdminReply(ok=True, sentence="done."),
}


def read(data: bytes) -> list[ClientMessage | FrameError]:
    reader = wire.client_reader()
    found: list[ClientMessage | FrameError] = []
    for at in range(0, len(data), wire.RECEIVE_BYTES):
        reader.feed(data[at : at + wire.RECEIVE_BYTES])
        found += reader.messages()
        if found and isinstance(found[-1], FrameError):
            break
    return found


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + body


def test_every_message_has_the_golden_bytes() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden == {name: wire.encode(each).hex() for name, each in (CLIENT | POOL).items()}


def test_every_message_is_in_the_documentation_with_its_bytes() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    for name, text in json.loads(GOLDEN.read_text()).items():
        assert f"### {name}\n" in page
        assert text in page.replace("\n", ""), name


def test_golden_bytes_are_read_back() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert read(b"".join(bytes.fromhex(golden[name]) for name in CLIENT)) == list(CLIENT.values())
    reader = wire.pool_reader()
    reader.feed(b"".join(bytes.fromhex(golden[name]) for name in POOL))
    assert list(reader.messages()) == list(POOL.values())


def test_a_tenant_without_bounds_of_stores_is_read() -> None:
    row = messages.TenantRow("a", b"", 0, -1, 0, -1, 1)
    short = wire.encode(messages.SetTenants([row]))[4:].replace(b"\x99\xa1a", b"\x97\xa1a")
    assert short.endswith(b"\x00\xff"), "what is left out: no floor, no cap"
    body = short[:-2]
    assert read(len(body).to_bytes(4, "little") + body) == [messages.SetTenants([row])]


def test_every_message_of_the_protocol_has_an_example() -> None:
    kinds = {type(message) for message in (CLIENT | POOL).values()}
    assert kinds == set(ClientMessage.__args__) | set(PoolMessage.__args__)


@given(st.lists(st.sampled_from(list(CLIENT.values())), max_size=20), st.integers(1, 50))
def test_messages_survive_any_cut(sent: list[ClientMessage], step: int) -> None:
    data = b"".join(map(wire.encode, sent))
    reader = wire.client_reader()
    found: list[ClientMessage | FrameError] = []
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        found += reader.messages()
    assert found == sent
    assert reader.waiting_bytes == 0


@given(st.binary(max_size=200))
def test_t39_any_bytes_are_messages_or_one_error(data: bytes) -> None:
    found = read(data)
    assert all(not isinstance(message, FrameError) for message in found[:-1])


@given(st.binary(max_size=200))
def test_t39_any_body_in_a_sound_frame_is_a_message_or_an_error(body: bytes) -> None:
    assert len(read(framed(body))) == 1


@given(
    st.sampled_from(sorted(CLIENT)),
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=4),
)
def test_t39_a_changed_message_is_a_message_or_an_error(
    name: str, changes: list[tuple[int, int]]
) -> None:
    body = bytearray(wire.encode(CLIENT[name])[4:])
    for at, value in changes:
        body[at % len(body)] = value
    assert len(read(framed(bytes(body)))) == 1


BOMBS = {
    "the longest length": b"\xff\xff\xff\xff",
    "one more than allowed": (FRAME_BYTES_MAX + 1).to_bytes(4, "little"),
    "an empty frame": bytes(4),
    "an array of 2^32": framed(b"\xdd\xff\xff\xff\xff\xa6cancel\x01"),
    "a list of 2^32": framed(b"\x93\xa7release\x01\xdd\xff\xff\xff\xff"),
    "a list of 2^28 runs": framed(b"\x93\xa7reserve\x01\xdd\x0f\xff\xff\xff"),
    "bytes of 2^32": framed(b"\x95\xa6lookup\x01\xc6\xff\xff\xff\xff"),
    "a text of 2^32": framed(b"\x93\xa5hello\x01\xdb\xff\xff\xff\xff"),
    "2^63 and more": framed(b"\x92\xa6cancel\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
    "nested arrays": framed(b"\x93\xa6cancel\x01" + b"\x91" * 1_000_000 + b"\x01"),
    "nested maps": framed(b"\x93\xa6cancel\x01" + b"\x81\x01" * 100_000 + b"\x01"),
    "no text": framed(b"\x93\xa5hello\x01\xa2\xff\xfe"),
    "an unknown tag": framed(b"\x92\xa6pickle\x01"),
    "a map": framed(b"\x81\xa1a\x01"),
    "trailing bytes": framed(b"\x92\xa6cancel\x01\x01"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_t40_bombs_are_refused_before_anything_is_allocated(name: str) -> None:
    tracemalloc.start()
    try:
        found = read(BOMBS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert name == "2^63 and more" or isinstance(found[0], FrameError)
    assert peak < 8 << 20


def test_a_partial_frame_holds_no_more_than_a_frame() -> None:
    reader = wire.client_reader()
    reader.feed(FRAME_BYTES_MAX.to_bytes(4, "little"))
    for _ in range(FRAME_BYTES_MAX // wire.RECEIVE_BYTES):
        assert not list(reader.messages())
        reader.feed(bytes(wire.RECEIVE_BYTES))
    assert reader.waiting_bytes <= FRAME_BYTES_MAX + wire.RECEIVE_BYTES
    assert isinstance(next(reader.messages()), FrameError)


def test_errors_quote_nothing_of_what_came() -> None:
    found = read(framed(b"\x93\xa5hello\x01\xa6SECRET\xff"))
    assert isinstance(found[0], FrameError)
    assert "SECRET" not in str(found[0])


def test_a_message_longer_than_a_frame_is_an_error_for_its_sender() -> None:
    with pytest.raises(FrameError):
        wire.encode(messages.Lookup(1, SPACE, 0, bytes(FRAME_BYTES_MAX)))
