"""Section ``[metrics]``: the number of guests that have metrics of their own."""

from typing import Final

from oslo_config import cfg, types

GROUP: Final = "metrics"
ALL: Final = "all"


class GuestCountType(types.ConfigType):
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GuestCountType)

    def __hash__(self) -> int:
        return hash(GuestCountType)

    def __repr__(self) -> str:
        return "GuestCount"

    def _formatter(self, value: object) -> str:
        return str(value)


OPTS: Final = [
    cfg.Opt(
        "guests",
        type=GuestCountType(),
        default="100",
        help="Maximum number of guests with metrics of their own (compute_agent_guest_...), or all. Each of"
        " these guests has about 15 time series. If the host has more guests, only the guests that used the"
        " most CPU time in the last minute have series. With 0, no guest has series, and the agent reads no"
        " files for these metrics.",
    ),
]


SECTIONS: Final = {GROUP: OPTS}
"""The options by section."""
