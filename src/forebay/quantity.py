"""Sizes as people write them: `4MiB`, `1.5TB`, `4096`.

Decimal units (KB, MB, GB, TB) are powers of 1000, binary ones (KiB, MiB, GiB, TiB) powers of 1024,
as on a drive's label and in a memory's data sheet; a single letter (K, M, G, T) is binary.
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


def parse_size(text: str) -> int:
    """Bytes in a size such as `256MiB`; a SettingsError names what is wrong with it."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise SettingsError(f"'{text[:40]}' is not a size; write one as 512MiB, 64GiB or 1TB.")
    number, unit = match[1], _UNITS[match[2]]
    size_bytes = round(float(number) * unit) if "." in number else int(number) * unit
    if size_bytes > SIZE_BYTES_MAX:
        raise SettingsError(f"'{text[:40]}' is more than a pool can hold ({SIZE_BYTES_MAX} bytes).")
    return size_bytes


def format_size(size_bytes: float, digits: int = 1) -> str:
    """A size for people, in binary units with so many decimals or none: `1.5 GiB`, `1 GiB`."""
    amount, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.{digits}f} {unit}".replace(f".{'0' * digits} ", " ")
