"""A request's body with its documents in another order, where it says which its documents are.

The member MEMBER lists the blocks of text that are documents, by relevance, as they stand in the
prompt one after the other; it is taken out. Promised: the prompt has the same characters, blocks
exchanged, and one line more behind the last block; members, messages and parts that have no
documents stay byte for byte as they are; work and memory grow with the body, up to BODY_BYTES_MAX.
"""

from itertools import islice
from typing import Final, NamedTuple

import msgspec

from forebay.documents.order import ArrangedDocuments, DocumentOrder

MEMBER: Final = "forebay_documents"
MEMBERS: Final = {  # where a path's prompt is
    "/v1/chat/completions": "messages",
    "/v1/completions": "prompt",
}
BODY_BYTES_MAX: Final = 8 << 20  # of a body with documents, in which they stand twice
DOCUMENTS_MAX: Final = 256  # of one request
GAP_LETTERS_MAX: Final = 64  # between two documents
_TRIES_MAX: Final = 4  # places of a message at which its first document stands
_MESSAGES_MAX: Final = 256  # the last of a dialog, in which documents are looked for
_PARTS_MAX: Final = 1024  # of a message with documents
_NOWHERE: Final = (
    f"the texts of {MEMBER} do not stand in one message or prompt, one after the other, with"
    " nothing between them but spaces and signs"
)
_Raw = msgspec.Raw
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raws: Final = msgspec.json.Decoder(list[msgspec.Raw])
_texts: Final = msgspec.json.Decoder(list[str])
_text: Final = msgspec.json.Decoder(str)
_NO_JSON: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class ReorderedBody(NamedTuple):
    """A body for an engine."""

    body: bytes
    ranks: tuple[int, ...]  # of its documents in their order now; empty: it is as it was


class _BlockExchange(NamedTuple):
    """Which blocks are exchanged for which."""

    given: list[str]
    arranged: ArrangedDocuments

    def text(self, text: str) -> str | None:
        """A text with its blocks exchanged; None: they do not stand in it so."""
        begin = text.find(self.given[0])
        for _ in range(_TRIES_MAX):
            if begin < 0:
                break
            if (spots := self._spots(text, begin)) is not None:
                return self._exchanged(text, spots)
            begin = text.find(self.given[0], begin + 1)
        return None

    def parts(self, parts: "list[msgspec.Raw]") -> "list[msgspec.Raw] | None":
        """A message's parts, of which each block is one, exchanged; None: they are not there."""
        texts = [_part_text(each) for each in parts[:_PARTS_MAX]]
        count = len(self.given)
        begins = (at for at, text in enumerate(texts) if text == self.given[0])
        for begin in islice(begins, _TRIES_MAX):
            end = begin + count
            if texts[begin:end] == self.given:
                break
        else:
            return None
        made = [parts[begin + rank - 1] for rank in self.arranged.ranks]
        if note := self.arranged.note:
            made.append(_raw({"type": "text", "text": note}))
        return [*parts[:begin], *made, *parts[end:]]

    def _spots(self, text: str, begin: int) -> list[int] | None:
        """Where each block begins."""
        spots, end = [begin], begin + len(self.given[0])
        for each in self.given[1:]:
            at, last = end, min(end + GAP_LETTERS_MAX, len(text) - len(each))
            while not text.startswith(each, at):
                # Words between blocks would belong to one of them, and stay behind.
                if at >= last or text[at].isalnum():
                    return None
                at += 1
            spots.append(at)
            end = at + len(each)
        return spots

    def _exchanged(self, text: str, spots: list[int]) -> str:
        made, end = [], 0
        for at, old, new in zip(spots, self.given, self.arranged.documents, strict=True):
            made += [text[end:at], new]
            end = at + len(old)
        tail = text[end:]
        if note := self.arranged.note:
            made += ["\n", note, "\n" if tail and not tail[0].isspace() else ""]
        return "".join([*made, tail])


def reordered(body: bytes, member: str, order: DocumentOrder) -> ReorderedBody | str:
    """A body that has MEMBER, without it; or in one sentence why it cannot be passed on.

    `member` is the one that has the prompt: `messages` or `prompt`.
    """
    if len(body) > BODY_BYTES_MAX:
        return f"a body with {MEMBER} has at most {BODY_BYTES_MAX >> 20} MiB"
    try:
        members = _members.decode(body)
        given = _texts.decode(members.pop(MEMBER))
        prompt = members[member]
    except (*_NO_JSON, KeyError):
        return f"{MEMBER} is a list of texts, beside '{member}'"
    if len(given) > DOCUMENTS_MAX:
        return f"{MEMBER} has at most {DOCUMENTS_MAX} texts"
    if not all(given):
        return f"{MEMBER} has an empty text"
    if not given:
        return ReorderedBody(msgspec.json.encode(members), ())
    arranged = order.arrange(given, bytes(members.get("cache_salt", b"")))
    exchange = _BlockExchange(given, arranged)
    made = _prompt(prompt, exchange) if member == "prompt" else _messages(prompt, exchange)
    if made is None:
        return _NOWHERE
    members[member] = made
    return ReorderedBody(msgspec.json.encode(members), arranged.ranks if arranged.note else ())


def _prompt(raw: msgspec.Raw, exchange: _BlockExchange) -> msgspec.Raw | None:
    text = _as_text(raw)
    found = None if text is None else exchange.text(text)
    return None if found is None else _raw(found)


def _messages(raw: msgspec.Raw, exchange: _BlockExchange) -> msgspec.Raw | None:
    """Messages of which the last that has the documents is written anew."""
    try:
        messages = _raws.decode(raw)
    except _NO_JSON:
        return None
    first = max(0, len(messages) - _MESSAGES_MAX)
    for at in range(len(messages) - 1, first - 1, -1):
        if (made := _message(messages[at], exchange)) is not None:
            messages[at] = made
            return _raw(messages)
    return None


def _message(raw: msgspec.Raw, exchange: _BlockExchange) -> msgspec.Raw | None:
    try:
        members = _members.decode(raw)
    except _NO_JSON:
        return None
    content = members.get("content", _Raw(b""))
    text = _as_text(content)
    found = exchange.text(text) if text is not None else _parts(content, exchange)
    return None if found is None else _raw({**members, "content": found})


def _parts(content: msgspec.Raw, exchange: _BlockExchange) -> "list[msgspec.Raw] | None":
    try:
        return exchange.parts(_raws.decode(content))
    except _NO_JSON:
        return None


def _part_text(raw: msgspec.Raw) -> str | None:
    try:
        return _as_text(_members.decode(raw)["text"])
    except (*_NO_JSON, KeyError):
        return None


def _as_text(raw: msgspec.Raw) -> str | None:
    try:
        return _text.decode(raw)
    except _NO_JSON:
        return None


def _raw(value: object) -> msgspec.Raw:
    return _Raw(msgspec.json.encode(value))
