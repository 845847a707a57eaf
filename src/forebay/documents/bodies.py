"""A request's body with its documents in another order, if it says which its documents are.

The member MEMBER lists the blocks of text that are documents, by relevance, in the order in which
the prompt has them; it is removed. Promised: the prompt has the same characters, with blocks in
another order, and one more line after the last block; members, messages and parts without documents
stay byte for byte as they are; work and memory grow with the body, up to BODY_BYTES_MAX.

Texts are compared and exchanged in their JSON form, because decoding and encoding them takes longer
than all the rest. Only if a body has escapes and its documents are not found so, they are decoded.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from forebay.documents.order import DocumentOrder, note_of, written

MEMBER: Final = "forebay_documents"
MEMBERS: Final = {  # by path, the member that has the prompt
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
}
BODY_BYTES_MAX: Final = 8 << 20  # of a body with documents, which contains them twice
DOCUMENTS_MAX: Final = 256  # of one request
GAP_LETTERS_MAX: Final = 64  # between two documents
_GAP_BYTES_MAX: Final = 12 * GAP_LETTERS_MAX  # a letter is at most two escapes in JSON
_ESCAPE_BYTES_MAX: Final = 6
_USUAL_GAPS: Final = frozenset({b"", b" ", b"\\n", b"\\n\\n"})
_TRIES_MAX: Final = 16  # places in a message that are tried for its first document
_HEAD_BYTES: Final = 256  # of the first document, which are searched for
_MESSAGES_MAX: Final = 256  # the last ones of a dialog, in which documents are looked for
_PARTS_MAX: Final = 1024  # of a message with documents
_NOWHERE: Final = (
    f"the texts of {MEMBER} do not stand in one message or prompt, one after the other, with"
    " nothing between them but spaces and signs"
)
_QUOTE: Final = b'"'
_MARK: Final = b'"%b"' % MEMBER.encode()
_Raw = msgspec.Raw
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_text: Final = msgspec.json.Decoder(str)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class _Mark(msgspec.Struct):
    forebay_documents: msgspec.Raw = _Raw(b"")


_marks: Final = msgspec.json.Decoder(_Mark)


class ReorderedBody(NamedTuple):
    """A body for an engine, with its documents in their new order."""

    body: bytes
    members: dict[str, msgspec.Raw]  # of the body, but with the unchanged prompt
    prompt: list[msgspec.Raw]  # the messages of the new prompt, or its one text
    ranks: tuple[int, ...]  # of its documents in their new order; empty: the order is unchanged


class _BlockExchange(NamedTuple):
    """Which blocks are exchanged for which, in their JSON form without quotes."""

    given: list[bytes]
    ranks: tuple[int, ...]
    note: bytes
    is_rewritten: bool = False  # texts are compared as this process writes them

    def text(self, text: bytes) -> bytes | None:
        """A text with its blocks exchanged; None if it does not have them one after the other."""
        first = self.given[0]
        # Searching for the whole of a long text would read all of it first.
        head = first[:_HEAD_BYTES]
        begin = text.find(head)
        for _ in range(_TRIES_MAX):
            if begin < 0:
                break
            if text.startswith(first, begin) and not _is_in_escape(text, begin):
                spots = self._spots(text, begin)
                if spots is not None:
                    return self._exchanged(text, spots)
            begin = text.find(head, begin + 1)
        return None

    def parts(self, parts: "list[msgspec.Raw]") -> "list[msgspec.Raw] | None":
        """A message's parts with the blocks exchanged; None if the blocks are not parts of it."""
        texts = [self._part_text(each) for each in parts[:_PARTS_MAX]]
        given = [b'"%b"' % each for each in self.given]
        count = len(given)
        begins = (at for at, text in enumerate(texts) if text == given[0])
        for begin in islice(begins, _TRIES_MAX):
            end = begin + count
            if texts[begin:end] == given:
                break
        else:
            return None
        made = [parts[begin + rank - 1] for rank in self.ranks]
        if self.note:
            made.append(_Raw(b'{"type":"text","text":"%b"}' % self.note))
        return [*parts[:begin], *made, *parts[end:]]

    def literal(self, raw: msgspec.Raw) -> bytes | None:
        """A text in the form in which it is compared; None if it is no text."""
        written_ = bytes(raw)
        if written_[:1] != _QUOTE:
            return None
        if not self.is_rewritten:
            return written_
        try:
            return msgspec.json.encode(_text.decode(raw))
        except _NO_JSON:
            return None

    def _part_text(self, raw: msgspec.Raw) -> bytes | None:
        try:
            return self.literal(_members.decode(raw)["text"])
        except (*_NO_JSON, KeyError):
            return None

    def _spots(self, text: bytes, begin: int) -> list[int] | None:
        """Where each block begins; None if they do not follow each other."""
        spots, end = [begin], begin + len(self.given[0])
        for each in self.given[1:]:
            at, last = end, min(end + _GAP_BYTES_MAX, len(text) - len(each))
            while not text.startswith(each, at) or _is_in_escape(text, at):
                if at >= last:
                    return None
                at += 1
            if not _is_gap(text[end:at]):
                return None
            spots.append(at)
            end = at + len(each)
        return spots

    def _exchanged(self, text: bytes, spots: list[int]) -> bytes:
        made, end = [], 0
        for at, old, rank in zip(spots, self.given, self.ranks, strict=True):
            made += [text[end:at], self.given[rank - 1]]
            end = at + len(old)
        tail = text[end:]
        if self.note:
            is_apart = tail == _QUOTE or _begins_with_space(tail)
            made += [b"\\n", self.note, b"" if is_apart else b"\\n"]
        return b"".join([*made, tail])


def marked(body: bytes) -> "dict[str, msgspec.Raw] | str | None":
    """The members of a body with MEMBER, or in one sentence why it cannot be passed on.

    None if it has no member of that name, written without escapes.
    """
    if _MARK not in body:
        return None
    try:
        if len(body) <= BODY_BYTES_MAX:
            members = _members.decode(body)
            return members if MEMBER in members else None
        if not bytes(_marks.decode(body).forebay_documents):
            return None
    except _NO_JSON:
        return None
    return f"a body with {MEMBER} has at most {BODY_BYTES_MAX >> 20} MiB"


def reordered(
    members: "dict[str, msgspec.Raw]", member: str, order: DocumentOrder
) -> ReorderedBody | str:
    """The body of these members with its documents in order, without MEMBER.

    Or in one sentence why it cannot be passed on. `member` has the prompt: `messages` or `prompt`.
    """
    try:
        listed = _raws.decode(members[MEMBER])
        literals = [_literal(each) for each in listed]
        prompt = members[member]
    except (*_NO_JSON, KeyError):
        return f"{MEMBER} is a list of texts, beside '{member}'"
    if len(literals) > DOCUMENTS_MAX:
        return f"{MEMBER} has at most {DOCUMENTS_MAX} texts"
    if not all(literals):
        return f"{MEMBER} has an empty text"
    others = {name: value for name, value in members.items() if name != MEMBER}
    ranks = order.ranks(literals, bytes(members.get("cache_salt", b"")))
    note = note_of(ranks)
    exchange = _BlockExchange(literals, ranks, note.encode())
    is_text = member == "prompt"
    try:
        found = [prompt] if is_text else _raws.decode(prompt)
        is_found = not literals or _exchange(found, exchange, is_text=is_text)
        if not is_found and (b"\\" in bytes(prompt) or b"\\" in bytes(members[MEMBER])):
            # The list and the prompt may have different escapes for the same letter.
            given = [written(_text.decode(each)) for each in listed]
            exchange = exchange._replace(given=given, is_rewritten=True)
            is_found = _exchange(found, exchange, is_text=is_text)
    except _NO_JSON:
        return _NOWHERE
    if not is_found:
        return _NOWHERE
    pieces = found if is_text else _list(found)
    body = _object(others, member, pieces)
    return ReorderedBody(body, others, found, ranks if note else ())


def _exchange(prompt: "list[msgspec.Raw]", exchange: _BlockExchange, *, is_text: bool) -> bool:
    """Exchange the documents in the text, or in the last message with them; False if none has."""
    made_of = _text_exchanged if is_text else _message
    first = max(0, len(prompt) - _MESSAGES_MAX)
    for at in range(len(prompt) - 1, first - 1, -1):
        if (made := made_of(prompt[at], exchange)) is not None:
            prompt[at] = made
            return True
    return False


def _text_exchanged(raw: msgspec.Raw, exchange: _BlockExchange) -> msgspec.Raw | None:
    text = exchange.literal(raw)
    found = None if text is None else exchange.text(text)
    return None if found is None else _Raw(found)


def _message(raw: msgspec.Raw, exchange: _BlockExchange) -> msgspec.Raw | None:
    try:
        members = _members.decode(raw)
    except _NO_JSON:
        return None
    content = members.get("content", _Raw(b""))
    found = _text_exchanged(content, exchange) or _parts(content, exchange)
    if found is None:
        return None
    return _Raw(_object(members, "content", [found]))


def _parts(content: msgspec.Raw, exchange: _BlockExchange) -> msgspec.Raw | None:
    try:
        parts = exchange.parts(_raws.decode(content))
    except _NO_JSON:
        return None
    return None if parts is None else _Raw(b"".join(_list(parts)))


def _is_gap(literal: bytes) -> bool:
    """Whether this may be between two blocks: spaces and signs, but no words."""
    if literal in _USUAL_GAPS:
        return True
    try:
        gap = _text.decode(b'"%b"' % literal)
    except _NO_JSON:
        return False  # the gap ends within a letter, so this is no block's beginning
    return len(gap) <= GAP_LETTERS_MAX and not any(each.isalnum() for each in gap)


def _is_in_escape(literal: bytes, at: int) -> bool:
    """Whether a position in a text is within an escape."""
    slash = literal.rfind(b"\\", max(0, at - _ESCAPE_BYTES_MAX + 1), at)
    if slash < 0:
        return False
    if at - slash >= 2 and literal[slash + 1 : slash + 2] != b"u":
        return False
    ended = literal[: slash + 1]
    return (len(ended) - len(ended.rstrip(b"\\"))) % 2 == 1  # else this slash ends an escape itself


def _begins_with_space(literal: bytes) -> bool:
    if literal[:1] != b"\\":
        return literal[:4].decode(errors="ignore")[:1].isspace()
    try:
        size = _ESCAPE_BYTES_MAX if literal[1:2] == b"u" else 2
        return _text.decode(b'"%b"' % literal[:size]).isspace()
    except _NO_JSON:
        return False


def _literal(raw: msgspec.Raw) -> bytes:
    """A text in its JSON form without quotes; DecodeError if it is no text."""
    literal = bytes(raw)
    if literal[:1] != b'"':
        raise msgspec.DecodeError
    return literal[1:-1]


def _rewritten(raw: msgspec.Raw) -> bytes:
    """A text as `written` gives it; DecodeError if it is no text."""
    return written(_text.decode(raw))


def _object(
    members: "dict[str, msgspec.Raw]", member: str, value: "Sequence[bytes | msgspec.Raw]"
) -> bytes:
    """An object as msgspec writes it, with another value for one member, copied only once."""
    pieces: list[bytes | msgspec.Raw] = []
    for name, raw in members.items():
        pieces += [b"," if pieces else b"{", msgspec.json.encode(name), b":"]
        pieces += value if name == member else [raw]
    return b"".join([*pieces, b"}"])


def _list(values: "list[msgspec.Raw]") -> "list[bytes | msgspec.Raw]":
    """The pieces of a list as msgspec writes it."""
    pieces: list[bytes | msgspec.Raw] = []
    for each in values:
        pieces += [b"," if pieces else b"[", each]
    return [*pieces, b"]" if pieces else b"[]"]
