"""Makes text from others safe to print: control characters and invalid bytes are escaped."""


def escaped(text: str) -> str:
    """A line that may hold words of others: control characters and odd bytes are escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
