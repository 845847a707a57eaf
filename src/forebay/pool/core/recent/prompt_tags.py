"""The namespaces in which the beginnings of prompts were lately looked up, by tag.

It answers one question: was a prompt that is not known here served under another model or
configuration? The last `TAGS_MAX` tags are kept; a tag is a hash (`identity.keys.prompt_tag`).
"""

from typing import Final

TAGS_MAX: Final = 1 << 15  # some 10 MB
_NAMESPACES_MAX: Final = 4  # namespaces remembered of one tag


class PromptTags:
    """Tags and their namespaces. Owned by the pool's thread."""

    def __init__(self) -> None:
        self._namespaces: dict[bytes, list[bytes]] = {}  # the oldest tag first

    def seen(self, tag: bytes, namespace: bytes) -> bool:
        """Note a lookup; whether the same prompt was looked up in another namespace before."""
        if not tag:
            return False
        namespaces = self._namespaces.pop(tag, [])
        self._namespaces[tag] = namespaces
        if len(self._namespaces) > TAGS_MAX:
            del self._namespaces[next(iter(self._namespaces))]
        if namespace not in namespaces:
            namespaces.append(namespace)
            del namespaces[:-_NAMESPACES_MAX]
        return len(namespaces) > 1
