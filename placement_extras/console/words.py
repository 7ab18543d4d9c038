"""Numbers and names as people read them: filters of templates."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

_THIN_SPACE: Final = "\N{NARROW NO-BREAK SPACE}"
_STEP: Final = 1024
_UNITS: Final = ("MiB", "GiB", "TiB", "PiB", "EiB")
_FIRST_UNIT: Final = {"MEMORY_MB": 0, "DISK_GB": 1}


def number(value: int) -> str:
    """With a narrow space between thousands."""
    return f"{value:,}".replace(",", _THIN_SPACE)


def quantity(value: int, resource_class: str) -> str:
    """An amount of a resource class, in the unit in which it is short: ``256 GiB`` of MEMORY_MB."""
    unit = _FIRST_UNIT.get(resource_class)
    if unit is None or value == 0:
        return number(value)
    shown = float(value)
    while abs(shown) >= _STEP and unit + 1 < len(_UNITS):
        shown, unit = shown / _STEP, unit + 1
    # one digit behind the point tells nobody more than he needs, and nothing for whole numbers
    text = f"{shown:.1f}".removesuffix(".0") if abs(shown) < 100 else f"{shown:.0f}"
    return f"{text}\N{NO-BREAK SPACE}{_UNITS[unit]}"


def percent(part: int, whole: int) -> int:
    """How much of a hundred, 0 to 100: no more than nothing is 0, and less than all is not 100."""
    if whole <= 0:
        return 100 if part > 0 else 0
    exact = 100 * part / whole
    if 0 < exact < 1:
        return 1
    return 99 if 99 < exact < 100 else max(0, min(100, round(exact)))


def width(part: int, whole: int) -> str:
    """The same as the width of a part of a bar, which is 100 wide."""
    if whole <= 0:
        return "0"
    return f"{max(0.0, min(100.0, 100 * part / whole)):.1f}".removesuffix(".0")


def when(seconds: float) -> str:
    """A time (seconds since 1970) in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """So many of something, of which several are called ``nouns`` if not with an s."""
    return f"{number(count)} {noun if count == 1 else nouns or noun + 's'}"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "quantity": quantity,
    "percent": percent,
    "width": width,
    "when": when,
    "plural": plural,
}
