"""Sizes and counts as people write them: `4MiB`, `1.5TB`, `4096`; `32k`, `0.6M`.

Of a size, decimal units (KB, MB, GB, TB) are powers of 1000, binary ones (KiB, MiB, GiB, TiB)
powers of 1024, as on a drive's label and in a memory's data sheet; a single letter (K, M, G, T) is
binary. Of a count (tokens, users, clients) a single letter is a power of 1000, and one with an `i`
of 1024: `32k` is 32,000, and `32Ki` 32,768.
"""

import re
from typing import Final

from forebay.errors import SettingsError

_UNITS: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{letter: 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]{0,3})", re.ASCII)
SIZE_BYTES_MAX: Final = 1 << 60
_COUNT_UNITS: Final[dict[str, int]] = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kmg", start=1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("kmg", start=1)},
}
_COUNT: Final = re.compile(r"(-?)(\d{1,15}(?:\.\d{1,6})?)([a-z]{0,2})", re.ASCII)


def parse_size(text: str) -> int:
    """The bytes of a size such as `256MiB`; a SettingsError tells what is wrong with it."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise SettingsError(f"'{text[:40]}' is not a size; write one as 512MiB, 64GiB or 1TB.")
    number, unit = match[1], _UNITS[match[2]]
    size_bytes = round(float(number) * unit) if "." in number else int(number) * unit
    if size_bytes > SIZE_BYTES_MAX:
        raise SettingsError(f"'{text[:40]}' is more than a pool can hold ({SIZE_BYTES_MAX} bytes).")
    return size_bytes


def parse_count(text: str) -> int:
    """A whole number such as `32768`, `32k` or `32Ki`; else a SettingsError."""
    match = _COUNT.fullmatch(text.strip().lower())
    if match is None or match[3] not in _COUNT_UNITS:
        raise SettingsError(
            f"'{text[:40]}' is not a whole number; write one as 32768, 32k (32,000) or 32Ki"
            " (32,768)."
        )
    sign: int = -1 if match[1] else 1
    unit = _COUNT_UNITS[match[3]]
    # Not through a float: 0.6M is 600,000 exactly, and 1.5 is not a whole number.
    whole, _, decimals = match[2].partition(".")
    count, rest = divmod(int(whole + decimals) * unit, int(10 ** len(decimals)))
    if rest:
        raise SettingsError(f"'{text[:40]}' is not a whole number.")
    return sign * count


def parse_rate(text: str) -> float:
    """A number such as `6700.5`, `1e4` or `38k`; else a ValueError."""
    match = _COUNT.fullmatch(text.strip().lower())
    if match is None or match[3] not in _COUNT_UNITS:
        return float(text)
    return float(match[1] + match[2]) * _COUNT_UNITS[match[3]]


def format_size(size_bytes: float, digits: int = 1) -> str:
    """A size for people, in binary units, with decimals if they are not all 0: `1.5 GiB`."""
    amount, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.{digits}f} {unit}".replace(f".{'0' * digits} ", " ")
