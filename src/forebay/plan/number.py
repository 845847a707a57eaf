"""Numbers from people and files, checked once: in range, finite, and of the right type.

The upper limits are far beyond any machine; they keep every later product within what floats can
represent and tables can show.
"""

from typing import Final

from forebay.errors import SettingsError

WHOLE_MAX: Final = 10**12
REAL_MIN: Final = 1e-9  # smaller numbers probably mean zero, and quotients with them overflow
REAL_MAX: Final = 1e18


def whole(field: str, value: object, *, least: int = 1, most: int = WHOLE_MAX) -> int:
    """The value as a whole number within [least, most], or a sentence that names the field."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(f"{field} must be a whole number, not {_shown(value)}.")
    if not least <= value <= most:
        raise SettingsError(f"{field} must be from {least} to {most}, not {_shown(value)}.")
    return value


def real(field: str, value: object, *, most: float = REAL_MAX, zero: bool = False) -> float:
    """The value as a finite number above 0 (or 0 itself, with `zero`) and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{field} must be a number, not {_shown(value)}.")
    if zero and value == 0:
        return 0.0
    # Compared before the conversion: a whole number may be too large for a float; NaN fails too.
    if not REAL_MIN <= value <= most:
        least = "at least 0" if zero else "above 0"
        raise SettingsError(f"{field} must be {least} and at most {most:g}, not {_shown(value)}.")
    return float(value)


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > REAL_MAX:
        return "a number of that size"  # its digits could fill a screen
    return repr(value)[:40]
