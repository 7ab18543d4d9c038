"""Limits on the reservations of a project: duration and horizon, number, amounts and hours.

The amounts and hours of claims with an end time count, too. Otherwise a project could claim the amounts of a
reservation, and then book the same amounts again. All writes of reservations and of such claims lock one
bucket, so two simultaneous bookings cannot exceed a limit together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from placement.exceptions import LIMIT_EXCEEDED, Conflict
from placement.store.time_profile import TimedAmount, TimeWindow, first_growth, iso_time
from placement.store.time_skyline import TimeSkyline

_HOUR: Final = 3600.0
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class LimitUse:
    """A limit of a project, and the largest amount that counts against this limit at any time from now on."""

    limit: int
    used: float


@dataclass(frozen=True, slots=True)
class BookingLimits:
    """The limits on the reservations of a project; None or a missing key means no limit.

    - ``max_duration``: seconds from the start to the end of a reservation.
    - ``max_ahead``: seconds from now to the start.
    - ``max_number``: maximum number of pending and active reservations of a project.
    - ``amounts``: largest sums of amounts at any instant, by resource class or by ``PROJECT/CLASS``.
    - ``hours``: largest sums of amounts multiplied by hours, within ``period`` seconds; the keys are those of
      ``amounts``.
    """

    max_duration: float | None = None
    max_ahead: float | None = None
    max_number: int | None = None
    amounts: Mapping[str, int] = field(default_factory=dict)
    hours: Mapping[str, int] = field(default_factory=dict)
    period: float = 30 * _DAY

    def uses_of(
        self, project_id: str, amounts: Sequence[TimedAmount], now: float
    ) -> tuple[dict[str, LimitUse], dict[str, LimitUse]]:
        """Return the limits of a project on amounts and on hours, by resource class, with the used parts.

        :param amounts: the amounts of the project.
        """
        skylines = {
            name: TimeSkyline.from_amounts(each for each in amounts if each.resource_class == name)
            for name in (_classes_of(self.amounts, project_id) | _classes_of(self.hours, project_id))
        }
        ahead = TimeWindow(now, math.inf)
        return (
            {
                name: LimitUse(limit, skylines[name].largest_sum(ahead))
                for name, limit in sorted(_classes_of(self.amounts, project_id).items())
            },
            {
                name: LimitUse(limit, skylines[name].largest_integral(now, self.period) / _HOUR)
                for name, limit in sorted(_classes_of(self.hours, project_id).items())
            },
        )

    def amount_limit(self, project_id: str, resource_class: str) -> int | None:
        """Return the largest sum of amounts of a project at any instant; None if nothing limits it."""
        return _limit_of(self.amounts, project_id, resource_class)

    @property
    def needs_amounts(self) -> bool:
        """Return whether a limit applies to the amounts of a project."""
        return bool(self.amounts or self.hours)

    def check_time(self, window: TimeWindow, now: float) -> None:
        """Refuse a reservation that is too long, or that begins too late.

        :raises Conflict: the message has the option, the limit and the wanted value.
        """
        duration, ahead = window.duration_seconds, window.starts_at - now
        if self.max_duration is not None and duration > self.max_duration:
            raise _limit_refusal(
                f"A reservation may last at most {self.max_duration:.0f} seconds ([reservations]"
                f" max_duration); this one lasts {duration:.0f}."
            )
        if self.max_ahead is not None and ahead > self.max_ahead:
            raise _limit_refusal(
                f"A reservation has to begin within {self.max_ahead:.0f} seconds ([reservations] max_ahead);"
                f" this one begins in {ahead:.0f}."
            )

    def check_number(self, number: int) -> None:
        """Refuse a new reservation if the project then has too many reservations.

        :param number: the number of the project's reservations, including the new reservation.
        :raises Conflict: the message has the option, the limit and the present value.
        """
        if self.max_number is not None and number > self.max_number:
            raise _limit_refusal(
                f"The project may have at most {self.max_number} reservations ([reservations]"
                f" max_project_reservations); it has {number - 1}."
            )

    def check_amounts(
        self, project_id: str, others: Sequence[TimedAmount], own: Sequence[TimedAmount], now: float
    ) -> None:
        """Refuse a new or longer reservation if the project would exceed its limits on amounts.

        :param others: all amounts of the project's other reservations. ``own`` has the amounts of this
            reservation.
        :raises Conflict: the message has the option, the limit, the present and the wanted value.
        """
        for name in sorted({each.resource_class for each in own}):
            some = [each for each in others if each.resource_class == name]
            wanted = [each for each in own if each.resource_class == name]
            if (limit := self.amount_limit(project_id, name)) is not None:
                self._check_sum(limit, name, some, wanted, now)
            if (limit := _limit_of(self.hours, project_id, name)) is not None:
                self._check_hours(limit, name, some, wanted, now)

    @staticmethod
    def _check_sum(
        limit: int, name: str, some: Sequence[TimedAmount], wanted: Sequence[TimedAmount], now: float
    ) -> None:
        ahead = TimeWindow(now, max(each.window.ends_at for each in wanted))
        instant = first_growth(some, [*some, *wanted], limit, ahead)
        if instant < ahead.ends_at:
            present = sum(each.used for each in some if each.starts_at <= instant < each.window.ends_at)
            raise _limit_refusal(
                f"The project may hold at most {limit} {name} at once ([reservations] max_project_amounts):"
                f" at {iso_time(instant)} it holds {present} in other reservations and in claims that end,"
                f" and this reservation needs {sum(each.used for each in wanted)}."
            )

    def _check_hours(
        self, limit: int, name: str, some: Sequence[TimedAmount], wanted: Sequence[TimedAmount], now: float
    ) -> None:
        present, after = (
            TimeSkyline.from_amounts(each).largest_integral(now, self.period) / _HOUR
            for each in (some, [*some, *wanted])
        )
        if after > max(limit, present):
            raise _limit_refusal(
                f"The project may hold at most {limit} hours of one {name} within {self.period / _DAY:g} days"
                f" ([reservations] max_project_hours): it has {present:.1f} hours, and would have"
                f" {after:.1f} with this reservation."
            )


def _limit_of(limits: Mapping[str, int], project_id: str, resource_class: str) -> int | None:
    return limits.get(f"{project_id}/{resource_class}", limits.get(resource_class))


def _classes_of(limits: Mapping[str, int], project_id: str) -> dict[str, int]:
    """Return the limits that apply to a project, by resource class."""
    # classes have no slash, but the id of a project may have one
    names = {each.rpartition("/")[2] for each in limits if each.rpartition("/")[0] in ("", project_id)}
    return {name: limit for name in names if (limit := _limit_of(limits, project_id, name)) is not None}


def _limit_refusal(text: str) -> Conflict:
    return Conflict(text, LIMIT_EXCEEDED)
