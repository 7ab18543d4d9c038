"""Types of options: lengths of time, such as ``90``, ``30m``, ``1h`` or ``7d``, and numbers of guests."""

import re
from typing import Final

from oslo_config import types

ALL: Final = "all"

SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: object) -> float:
    """Convert a length of time to seconds. The text is a number, with or without the unit s, m, h, d or w.

    A number without a unit is in seconds.

    :raises ValueError: the text is not a length of time.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smhdw]?)\s*", str(text), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a length of time, such as 90, 30m, 1h or 7d")
    return float(match[1]) * SECONDS[match[2]]


class OptionType(types.ConfigType):
    """A type of options that oslo.config lacks. All instances of a type are equal."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return type(self).__name__.removesuffix("Type")

    def _formatter(self, value: object) -> str:
        return str(value)


class DurationType(OptionType):
    """The type of options for lengths of time. Their values are seconds."""

    def __init__(self) -> None:
        super().__init__(type_name="duration value")

    def __call__(self, value: object) -> float:
        """Convert a length of time to seconds.

        :raises ValueError: the value is not a length of time.
        """
        return parse_duration(value)


class GuestCountType(OptionType):
    """The type of options that are a number of guests or ``all``. The value of ``all`` is None."""

    def __init__(self) -> None:
        super().__init__(type_name="number or all")

    def __call__(self, value: object) -> int | None:
        """Convert a text to a number of guests; None for ``all``.

        :raises ValueError: the value is another text, or a negative number.
        """
        if value == ALL:
            return None
        count = int(str(value))
        if count < 0:
            raise ValueError("a number of guests is not negative")
        return count
