"""What the gateway reads of a request's body: model, sizes, and hashes of the prompt's parts.

Nothing else of it is read, and nothing is changed, except that hints are inserted before the first
member for engines that have the pool. Pure functions. A body that marks its documents is changed
elsewhere, and then read again.
"""

import re
from typing import Final, NamedTuple

import msgspec
import xxhash

from forebay.documents.bodies import MEMBER, ReorderedBody
from forebay.gateway.placement.prefixes import PromptPart

BLOCK_BYTES: Final = 512  # size of the parts of a prompt that is one text
CUT_BYTES: Final = 2048  # size of the parts of a long message, if documents were ordered
PARTS_MAX: Final = 4096  # of one prompt; the rest counts as one more part
_COMMAS_MAX: Final = 64 * PARTS_MAX  # a list with more may have too many members to decode
SESSION_HEADERS: Final = ("x-session-id", "x-claude-code-session-id", "thread-id")
SESSION_LETTERS_MAX: Final = 256
_MODEL_LETTERS_MAX: Final = 256
_OTHER_BYTES_MAX: Final = 16 << 10  # of a body beside the prompt that was found in it
_ANSWER_TOKENS_MAX: Final = 10_000_000
# A form names its model in a field; nothing else of a form is read.
_FORM_MODEL: Final = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')
_FORM_BYTES: Final = 4096  # at either end of a form, where its fields are
_Raw = msgspec.Raw
_NONE: Final = msgspec.Raw(b"")
_ONE: Final = msgspec.Raw(b"1")
_FALSE: Final = msgspec.Raw(b"false")
_UNSET: Final = (b"", b"null", b"false", b"0")
# With one of these, an engine computes the whole prompt anyway, or the answer comes elsewhere.
_NOT_APART: Final = ("prompt_logprobs", "echo", "background", "previous_response_id")
# These shape the answer, and may contradict that it has one token.
_OF_ANSWERS: Final = frozenset(
    {
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "stream"),
        *("stream_options", "n", "best_of", "use_beam_search", "logprobs", "top_logprobs"),
        *("response_format", "structured_outputs", "store"),
    }
)


class _Body(msgspec.Struct):
    """The members that are read; all others are skipped."""

    model: _Raw = _NONE
    messages: _Raw = _NONE
    prompt: _Raw = _NONE
    input: _Raw = _NONE
    system: _Raw = _NONE
    instructions: _Raw = _NONE
    tools: _Raw = _NONE
    cache_salt: _Raw = _NONE
    max_tokens: _Raw = _NONE
    max_completion_tokens: _Raw = _NONE
    max_output_tokens: _Raw = _NONE
    priority: _Raw = _NONE
    stream: _Raw = _NONE
    previous_response_id: _Raw = _NONE
    kv_transfer_params: _Raw = _NONE
    forebay_documents: _Raw = _NONE  # for the gateway alone: no engine sees it


class ReadBody(NamedTuple):
    """What is read of a request's body."""

    model: str
    chain: tuple[PromptPart, ...]
    prompt_bytes: int
    answer_tokens_max: int  # 0: no limit given
    priority: int
    is_streamed: bool
    takes_hints: bool  # it is a JSON object without hints of its own
    continues: str = ""  # the id of the earlier answer that it continues; empty: none
    ranks: tuple[int, ...] = ()  # of its documents, if their order was changed


_decoder: Final = msgspec.json.Decoder(_Body)
_NAMES: Final = frozenset(_Body.__struct_fields__)
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_text: Final = msgspec.json.Decoder(str)
_number: Final = msgspec.json.Decoder(int)


def read_body(body: bytes, content_type: str) -> ReadBody | str:
    """Read a body; in one sentence why it cannot be passed on, if so."""
    if content_type.startswith("multipart/form-data"):
        found = _FORM_MODEL.search(body[:_FORM_BYTES]) or _FORM_MODEL.search(body[-_FORM_BYTES:])
        if found is None:
            return "this form has no field 'model' at its beginning or end"
        model = found[1].decode(errors="replace")
        return ReadBody(model, (), len(body), 0, 0, is_streamed=False, takes_hints=False)
    try:
        said = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "the body is not a JSON object"
    if bytes(said.forebay_documents):
        return f"{MEMBER} is written without escapes"
    return _read(said, _pieces(said), len(body))


def read_reordered(made: ReorderedBody) -> ReadBody | str:
    """Read a body whose documents were put in order.

    Long messages are cut into several parts, so that a common beginning of two counts.
    """
    said = _Body(**{name: made.members[name] for name in made.members.keys() & _NAMES})
    cut = [block for piece in made.prompt for block in _blocks(bytes(piece), CUT_BYTES)]
    read = _read(said, cut, len(made.body))
    return read if isinstance(read, str) else read._replace(ranks=made.ranks)


def _read(said: _Body, pieces: "list[msgspec.Raw] | list[bytes]", size: int) -> ReadBody | str:
    try:
        model = _text.decode(said.model)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "the body has no 'model' that is a text"
    if len(model) > _MODEL_LETTERS_MAX:
        return "the name of the model is too long"
    chain = _chain(model, said, pieces)
    prompt_bytes = chain[-1].end if chain else size
    if size - prompt_bytes > _OTHER_BYTES_MAX:  # the rest may be a prompt for the engine, too
        prompt_bytes = size
    limit = _first(said.max_completion_tokens, said.max_tokens, said.max_output_tokens)
    return ReadBody(
        model,
        chain,
        prompt_bytes,
        min(max(0, _integer(limit)), _ANSWER_TOKENS_MAX),
        _integer(said.priority),
        is_streamed=bytes(said.stream) == b"true",
        takes_hints=not bytes(said.kv_transfer_params),
        continues=_string(said.previous_response_id),
    )


def session_of(headers: "dict[str, str]") -> str:
    """The client's id of its dialog; empty if it gives none. Header names must be lower-case."""
    for name in SESSION_HEADERS:
        if value := headers.get(name, ""):
            return value[:SESSION_LETTERS_MAX]
    return ""


def with_hints(body: bytes, hints: "dict[str, str | int]") -> bytes:
    """A body that `takes_hints`, with these hints added; every other byte is unchanged."""
    if not hints:
        return body
    start = body.index(b"{") + 1
    said = msgspec.json.encode({"forebay": hints})
    return b'%b"kv_transfer_params":%b,%b' % (body[:start], said, body[start:])


def with_salt(body: bytes, salt: str) -> bytes | str:
    """A body with this `cache_salt`, or in one sentence why it cannot have it.

    All members are written anew, each once: if one came twice, an engine might read the other.
    """
    try:
        members = _members.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "the body is not a JSON object"
    if bytes(members.get("cache_salt", _NONE)) not in _UNSET[:2]:
        return "the cache_salt of this key's requests is its tenant's; leave it out"
    return msgspec.json.encode({**members, "cache_salt": msgspec.Raw(msgspec.json.encode(salt))})


def prefill_body(body: bytes, path: str) -> bytes | None:
    """The request for the same prompt and one token; None if its KV would not serve the request.

    Members stay as they are, except those that only shape the answer.
    """
    try:
        members = _members.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if any(bytes(members.get(name, _NONE)) not in _UNSET for name in _NOT_APART):
        return None
    kept = {name: value for name, value in members.items() if name not in _OF_ANSWERS}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    asked = {**kept, limit: _ONE, "stream": _FALSE}
    return msgspec.json.encode({**asked, "store": _FALSE} if path == "/v1/responses" else asked)


def _first(*members: msgspec.Raw) -> msgspec.Raw:
    """The first of these members that the body has; an empty one if it has none."""
    return next((each for each in members if bytes(each)), _NONE)


def _string(raw: msgspec.Raw) -> str:
    try:
        return _text.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _integer(raw: msgspec.Raw) -> int:
    try:
        return _number.decode(raw)
    except msgspec.DecodeError:
        return 0


def _chain(
    model: str, said: _Body, pieces: "list[msgspec.Raw] | list[bytes]"
) -> tuple[PromptPart, ...]:
    """The prompt's parts, each named by a hash over all parts up to it; none without a prompt."""
    head = [
        model.encode(errors="replace"), said.cache_salt, said.tools, said.system, said.instructions
    ]  # fmt: skip
    name = 0
    for part in head:
        name = xxhash.xxh3_64_intdigest(part, name)
    end = sum(len(bytes(part)) for part in head[2:])
    chain = []
    if end:
        chain.append(PromptPart(name, end))
    for piece in pieces[:PARTS_MAX]:
        name = xxhash.xxh3_64_intdigest(piece, name)
        end += memoryview(piece).nbytes
        chain.append(PromptPart(name, end))
    if rest := pieces[PARTS_MAX:]:
        for piece in rest:
            name = xxhash.xxh3_64_intdigest(piece, name)
            end += memoryview(piece).nbytes
        chain.append(PromptPart(name, end))
    return tuple(chain)


def _pieces(said: _Body) -> "list[msgspec.Raw] | list[bytes]":
    listed = _first(said.messages, said.input)
    try:
        if bytes(listed).count(b",") <= _COMMAS_MAX:
            return _parts.decode(listed)
    except msgspec.DecodeError:
        pass  # it is one text, or a list of tokens, or there is none
    return _blocks(bytes(_first(said.prompt, said.input)), BLOCK_BYTES)


def _blocks(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]
