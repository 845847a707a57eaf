"""Makes text from others safe to print: control characters and invalid bytes are escaped."""


def escaped(text: str) -> str:
    """A line of foreign text with control characters and invalid bytes escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
