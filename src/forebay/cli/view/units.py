"""Amounts as people read them: sizes, rates, times, shares and counts."""

from typing import Final

from forebay.quantity import format_size

_MINUTE_S: Final = 60
_HOUR_S: Final = 60 * _MINUTE_S
_DAY_S: Final = 24 * _HOUR_S
_YEAR_S: Final = 365 * _DAY_S


def size(size_bytes: float) -> str:
    """`12.3 GiB`."""
    return format_size(round(size_bytes))


def rate(bytes_s: float) -> str:
    """`1.2 GiB/s`."""
    return f"{format_size(round(bytes_s))}/s"


def duration(seconds: float) -> str:
    """The two largest units: `3 h 12 min`; below a minute, seconds."""
    if seconds < 1:
        return "less than a second"
    if seconds < _MINUTE_S:
        return f"{int(seconds)} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min {int(seconds % _MINUTE_S)} s"
    if seconds < _DAY_S:
        return f"{seconds // _HOUR_S:.0f} h {seconds % _HOUR_S // _MINUTE_S:.0f} min"
    if seconds < _YEAR_S:
        return f"{seconds // _DAY_S:.0f} d {seconds % _DAY_S // _HOUR_S:.0f} h"
    return f"{seconds / _YEAR_S:.1f} years"


def share(part: float, whole: float) -> str:
    """`73 %`; a dash if the whole is 0."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def count(number: float) -> str:
    """`12,345`."""
    return f"{number:,.0f}"


def frequency(number: float, seconds: float) -> str:
    """Events per second; if below one, per minute."""
    each_s = number / seconds
    return f"{each_s:,.1f}/s" if each_s >= 1 or not each_s else f"{60 * each_s:,.1f}/min"
