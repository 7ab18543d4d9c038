"""Computes sums of amounts over time, and the size of holds, without the database.

Nouns
    A *time window* is a half-open interval ``[starts_at, ends_at)`` of seconds since 1970, by the clock of
    the database. So one window can begin at the moment when another window ends. A *timed amount* is an
    amount of one resource class of one provider that a consumer can use during a time window. Reservations
    with a start time (*windows*) and claims with an end time have timed amounts. Amounts of all other
    consumers have no known end.

    The *peak* of a provider and class is the largest momentary sum of its timed amounts, from now on. The
    *begun* timed amounts have allocations, like the amounts of every consumer. The amount of the *hold* is
    the peak minus the begun amounts. A consumer of the type ``WINDOW_HOLD`` has this amount as an allocation.

Why a hold
    An amount without an end must be free in addition to every later window, and therefore in addition to the
    peak. Because the hold is an allocation, the used amount of a provider is always the sum of the amounts
    without an end and of the peak. So each search, each claim and each report of usage takes windows into
    account without special code.

    A cloud without windows runs the same statements as before. Only writes of timed amounts compute holds.

A worked example
    A host has 8 VCPU, and a guest without an end time uses 2. One window takes 4 VCPU from 10:00 to 11:00,
    another window takes 6 VCPU from 11:00 to 12:00. The two windows do not overlap, so the peak is 6 VCPU,
    and the hold is 6 VCPU, too. The used amount of the host is 8 VCPU, so no other guest without an end time
    fits. At 10:00 the first window begins, so its 4 VCPU become an allocation, and the hold shrinks to 2. If
    the window is deleted at 10:30, the hold grows to 6 again.

Returns of claims
    A claim from a window takes its amounts out of the window until the claim ends, is deleted or is replaced.
    Then the amounts are promised to the window again. The *promise* of a window is the sum of its own amounts
    and of the amounts that its claims use, by provider and class. From the promise, :func:`returned_amounts`
    derives which amounts return to the window, and when. These *returns* are timed amounts without an
    allocation, so the hold of the provider keeps them free: a claim may end at any moment, without a write of
    its window.

    In the example above, a claim takes all 4 VCPU of the first window until 10:40. If the claim is deleted at
    10:10, the window has the return of 4 VCPU from 10:10 until 11:00, and the hold grows by 4.

Invariants
    - At each instant, amounts without an end and timed amounts together are at most the capacity, unless an
      operator reduces the capacity or books a maintenance. No other write increases the excess over the
      capacity, neither at any instant nor of the peak.
    - A transaction that changes timed amounts also writes the holds of their providers.
    - An amount that has ended, but still has its allocation, counts as begun, but not for the peak. So the
      hold is never too small, even if the service removes the allocation late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from heapq import nsmallest
from typing import Final

from placement.exceptions import Conflict, InvalidRequest

# the time is limited, so that an error in a date does not hold room for centuries
MAX_AHEAD: Final = 366 * 86_400.0
"""Maximum number of seconds from now to the start of a window."""
# requests need some time from the client to the service, and the clocks of clients differ
MAX_PAST: Final = 60.0
"""Maximum number of seconds by which the start of a new window may lie in the past."""
# a message has to stay readable
_MAX_NAMED: Final = 5
"""Maximum number of windows and claims that an error message names."""
# each write of a timed amount reads all timed amounts of its providers
MAX_TIMED_AMOUNTS: Final = 1000
"""Maximum number of timed amounts of one resource class that one provider may have."""

# the columns of amounts are signed integers of 32 bits
_MAX_PEAK: Final = 2**31 - 1
"""Largest peak that one resource class of one provider may have."""

# a float within the last second of 9999 may be rounded up to the year 10000, which no date can have
_LAST: Final = 253_402_300_799.0
"""The last second of the year 9999, as the latest possible time."""

AT_ONCE: Final = 0.0
"""The start of a claim that begins at the moment when it is written."""


class EndAction(StrEnum):
    """An action on a guest at the end of its claim, in addition to the release of its allocations."""

    NONE = "none"
    NOTIFY = "notify"
    EVICT = "evict"


class HoldRefusal(Conflict):
    """The error for a hold that cannot be written, even if other consumers release amounts."""


HoldKey = tuple[str, str]
"""The key of a hold: the uuid of a provider and the name of a resource class."""


def iso_time(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as ISO 8601 text in UTC with milliseconds."""
    time = datetime.fromtimestamp(min(seconds, _LAST), UTC).replace(tzinfo=None)
    return f"{time.isoformat(timespec='milliseconds')}Z"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The half-open interval of time ``[starts_at, ends_at)``."""

    starts_at: float
    ends_at: float

    @property
    def duration_seconds(self) -> float:
        """Return the length in seconds."""
        return self.ends_at - self.starts_at

    def has_overlap(self, other: TimeWindow) -> bool:
        """Return whether the two windows have an instant in common."""
        return self.starts_at < other.ends_at and other.starts_at < self.ends_at


@dataclass(frozen=True, slots=True)
class WindowMargins:
    """Seconds before and after the usable time of a window, in which its amounts are also reserved."""

    # these are whole numbers, so that sums with times are exact
    lead: int = 0
    cleaning: int = 0

    def held_window(self, usable: TimeWindow) -> TimeWindow:
        """Return the reserved time, computed from the time in which claims can use the amounts."""
        return TimeWindow(usable.starts_at - self.lead, usable.ends_at + self.cleaning)

    def usable_window(self, held: TimeWindow) -> TimeWindow:
        """Return the time in which claims can use the amounts, computed from the reserved time."""
        return TimeWindow(held.starts_at + self.lead, held.ends_at - self.cleaning)


NO_MARGINS: Final = WindowMargins()


@dataclass(frozen=True, slots=True)
class TimedAmount:
    """An amount of a resource class that a consumer can use during a time window.

    ``consumer`` and ``provider`` are uuids. ``has_begun`` tells whether the amount has an allocation.
    ``is_return`` marks an amount that a window gets back from one of its claims, without an allocation.
    """

    consumer: str
    provider: str
    resource_class: str
    used: int
    window: TimeWindow
    has_begun: bool
    is_return: bool = False

    @property
    def key(self) -> HoldKey:
        """The provider's uuid and the name of the resource class."""
        return self.provider, self.resource_class

    @property
    def is_ahead(self) -> bool:
        """Whether the consumer has not begun to hold its amounts."""
        # the window of a return has begun, too; only the return begins later
        return not (self.has_begun or self.is_return)

    @property
    def starts_at(self) -> float:
        """The start of the window; minus infinity for an amount with an allocation, which has begun."""
        # the start does not count, because the clock of a server that takes over may be behind
        return -math.inf if self.has_begun else self.window.starts_at


def largest_sum(amounts: Iterable[TimedAmount], window: TimeWindow) -> int:
    """Return the largest sum that these amounts reach at any instant of a window."""
    steps: list[tuple[float, int]] = []
    for each in amounts:
        begin, end = max(each.starts_at, window.starts_at), min(each.window.ends_at, window.ends_at)
        if begin < end:
            steps += [(begin, each.used), (end, -each.used)]
    # at equal times the ends sort before the starts, because intervals are half-open
    steps.sort()
    largest = present = 0
    for _, change in steps:
        present += change
        largest = max(largest, present)
    return largest


def first_growth(
    before: Iterable[TimedAmount], after: Iterable[TimedAmount], limit: int, window: TimeWindow
) -> float:
    """Return the first instant of a window at which a write increases an excess over a limit.

    The result is the end of the window if there is no such instant.

    :param before: the amounts before a write, of which the sum may exceed the limit at some instants.
    :param after: the amounts after the write.
    """
    # for each instant: the change of the sum of amounts before the write, and the change of the sum after it
    steps: dict[float, list[int]] = {}
    for position, amounts in enumerate((before, after)):
        for each in amounts:
            begin, end = max(each.starts_at, window.starts_at), min(each.window.ends_at, window.ends_at)
            if begin < end:
                steps.setdefault(begin, [0, 0])[position] += each.used
                steps.setdefault(end, [0, 0])[position] -= each.used
    sums = [0, 0]
    for instant, changes in sorted(steps.items()):
        sums = [present + change for present, change in zip(sums, changes, strict=True)]
        if sums[1] > max(limit, sums[0]):
            return instant
    return window.ends_at


def by_key(amounts: Iterable[TimedAmount]) -> dict[HoldKey, list[TimedAmount]]:
    """Group the amounts by provider and resource class."""
    found: dict[HoldKey, list[TimedAmount]] = {}
    for each in amounts:
        found.setdefault(each.key, []).append(each)
    return found


@dataclass(frozen=True, slots=True)
class WindowPromise:
    """An amount that a window and its claims together have until the end of the window.

    ``window_id`` and ``window`` are the id and the uuid of its consumer; ``time`` is the time of the window.
    """

    window_id: int
    window: str
    provider: str
    resource_class: str
    used: int
    time: TimeWindow


@dataclass(frozen=True, slots=True)
class TimedRows:
    """The timed amounts that have rows in the database, and the promises from which returns follow.

    :param sources: the ids of the windows from which claims have taken their amounts, by the uuid of the
        claim's consumer.
    """

    amounts: Sequence[TimedAmount]
    promises: Sequence[WindowPromise] = ()
    sources: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_amounts(self) -> Sequence[TimedAmount]:
        """The amounts with rows, and the returns."""
        return [*self.amounts, *returned_amounts(self)] if self.promises else self.amounts

    @property
    def window_claims(self) -> frozenset[str]:
        """The consumers of claims that have taken their amounts from present windows."""
        windows = {each.window_id for each in self.promises}
        return frozenset(consumer for consumer, window in self.sources.items() if window in windows)

    def without_consumers(self, consumers: Collection[str]) -> TimedRows:
        """Return the rows as if some consumers had no amounts."""
        return TimedRows(
            [each for each in self.amounts if each.consumer not in consumers],
            [each for each in self.promises if each.window not in consumers],
            {consumer: window for consumer, window in self.sources.items() if consumer not in consumers},
        )


def returned_amounts(rows: TimedRows) -> list[TimedAmount]:
    """Return the amounts that windows get back from their claims, when the claims end or already now.

    :param rows: all amounts of the providers with these promises.
    """
    if not rows.promises:
        return []
    held: dict[tuple[str, HoldKey], int] = {}
    taken: dict[tuple[int, HoldKey], list[TimedAmount]] = {}
    for each in rows.amounts:
        window_id = rows.sources.get(each.consumer)
        if window_id is None:
            held[each.consumer, each.key] = each.used
        else:
            taken.setdefault((window_id, each.key), []).append(each)
    found = []
    for promise in rows.promises:
        key, end = (promise.provider, promise.resource_class), promise.time.ends_at
        rest = promise.used - held.get((promise.window, key), 0)
        for each in taken.get((promise.window_id, key), ()):
            rest -= each.used
            # a claim that ends with its window gives nothing back
            if each.window.ends_at < end:
                found.append(_return_of(promise, each.used, each.window.ends_at))
        if rest > 0:
            # a window with claims has begun, even if the clock is behind
            found.append(_return_of(promise, rest, AT_ONCE))
    return found


def _return_of(promise: WindowPromise, used: int, starts_at: float) -> TimedAmount:
    time = TimeWindow(starts_at, promise.time.ends_at)
    return TimedAmount(promise.window, promise.provider, promise.resource_class, used, time, False, True)


def needed_holds(amounts: Iterable[TimedAmount], now: float) -> dict[HoldKey, int]:
    """Return the amount that each hold needs, by provider and resource class with timed amounts."""
    return {
        key: max(
            0,
            largest_sum(some, TimeWindow(now, math.inf)) - sum(each.used for each in some if each.has_begun),
        )
        for key, some in by_key(amounts).items()
    }


def wrong_holds(
    amounts: Sequence[TimedAmount], holds: Iterable[tuple[HoldKey, int]], now: float
) -> dict[HoldKey, tuple[int, int]]:
    """Return the present and the needed amount of each wrong hold.

    :param amounts: all timed amounts of the providers.
    :param holds: the present holds of the providers; missing holds are 0.
    """
    needed, present = needed_holds(amounts, now), dict(holds)
    # a hold was computed in the past, and later some amounts may have ended without a release
    largest = needed_holds(amounts, -math.inf)
    found = {key: (present.get(key, 0), needed.get(key, 0)) for key in sorted({*needed, *present})}
    return {
        key: (held, wanted)
        for key, (held, wanted) in found.items()
        if not wanted <= held <= largest.get(key, 0)
    }


def check_amounts(amounts: Iterable[TimedAmount], now: float) -> None:
    """Refuse too many or too large timed amounts of one provider and resource class.

    The check limits the peak, not the hold, because a hold may grow up to the peak when a claim is released.
    Each consumer counts once. A window without an amount of its own counts only if it has a return that is
    due: each later return belongs to a claim, which is counted.

    :raises HoldRefusal: there are more than :data:`MAX_TIMED_AMOUNTS`, or the peak is too large for a
        database column.
    """
    for (provider, name), some in by_key(amounts).items():
        if len({each.consumer for each in some if not each.is_return or each.starts_at <= now}) > (
            MAX_TIMED_AMOUNTS
        ):
            raise HoldRefusal(
                f"Resource provider '{provider}' has {MAX_TIMED_AMOUNTS} amounts of '{name}' in windows and"
                " in claims that end, which is the maximum."
            )
        peak = sum(each.used for each in some)
        if peak > _MAX_PEAK and (peak := largest_sum(some, TimeWindow(now, math.inf))) > _MAX_PEAK:
            raise HoldRefusal(
                f"Windows and claims that end would need {peak} of '{name}' of resource provider"
                f" '{provider}' at once; the maximum is {_MAX_PEAK}."
            )


def check_window(window: TimeWindow, now: float) -> TimeWindow:
    """Return the part of a requested window that lies in the future.

    :raises InvalidRequest: the window is over, or its start is too far in the future or in the past.
    """
    if window.starts_at > now + MAX_AHEAD:
        raise InvalidRequest(
            f"A window has to begin within {MAX_AHEAD / 86_400:.0f} days;"
            f" the time of the database is {iso_time(now)}."
        )
    if AT_ONCE < window.starts_at < now - MAX_PAST:
        raise InvalidRequest(
            f"A window, with its lead time, cannot begin in the past by more than {MAX_PAST:.0f} seconds;"
            f" the time of the database is {iso_time(now)}."
        )
    if window.ends_at <= max(now, window.starts_at):
        raise InvalidRequest(
            "A window, or a claim with ends_at, has to end after its start, and in the future;"
            f" the time of the database is {iso_time(now)}."
        )
    return TimeWindow(max(now, window.starts_at), window.ends_at)


def overlaps_sentence(
    amounts: Iterable[TimedAmount],
    window: TimeWindow,
    choose_preemptible: Callable[[Collection[str]], Collection[str]] = lambda _: (),
    *,
    are_all: bool = True,
) -> str:
    """Return a sentence with the names of windows and claims that overlap a window; empty if none overlaps.

    :param choose_preemptible: a function that returns those of some consumers that have preemptible claims.
    :param are_all: whether ``amounts`` has all amounts, so that the sentence may also give the number of
        unnamed windows and claims.
    """
    shown, left = first_overlaps(amounts, window)
    if not shown:
        return ""
    preemptible = frozenset(choose_preemptible([each.consumer for each in shown if each.has_begun]))
    named = name_overlaps(shown, left if are_all else None, preemptible)
    return f" Other windows and claims overlap this time: {named}."


def first_overlaps(amounts: Iterable[TimedAmount], window: TimeWindow) -> tuple[list[TimedAmount], int]:
    """Return one amount of each of some windows and claims that overlap a window, the earliest end first.

    :returns: the amounts, and the number of the other windows and claims that overlap.
    """
    overlapping = {
        (each.window.ends_at, each.consumer): each for each in amounts if each.window.has_overlap(window)
    }
    shown = [each for _, each in nsmallest(_MAX_NAMED, overlapping.items())]
    return shown, len(overlapping) - len(shown)


def name_overlaps(
    shown: Sequence[TimedAmount], left: int | None, preemptible: Collection[str] = frozenset()
) -> str:
    """Return the text that names windows and claims with their times.

    :param left: the number of windows and claims that the text does not name; None if it is unknown.
    :param preemptible: the uuids of the consumers with preemptible claims.
    """
    named = [
        each.consumer
        + (f" from {iso_time(each.window.starts_at)}" if each.is_ahead else "")
        + f" until {iso_time(each.window.ends_at)}"
        + (" (preemptible)" if each.consumer in preemptible else "")
        for each in shown
    ]
    more = " and others" if left is None else f" and {left} more" if left > 0 else ""
    return f"{', '.join(named)}{more}"
