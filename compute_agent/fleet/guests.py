"""Settings of single guests that a revision has: what is to be changed, and what somebody else has changed.

A section ``[guest:UUID]`` has what ``compute-agent guest set`` takes. A setting by hand is stronger than one
of the fleet. A setting that a later revision leaves out is unset. Each setting is compared three ways, as
when texts are merged: what the revision *wants*, what was *applied* of one last, what the guest has *now*.

    now is what is wanted                    nothing to do
    nothing was applied so far               it is set
    now is what was applied                  it is set: nobody else has touched it
    now is something else                    a conflict: it stays, and is told
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.conf.fleet import GUEST
from compute_agent.conf.written import Written
from compute_agent.fleet.revision import FleetError
from compute_agent.model.guest_settings import SETTING_NAMES, read_setting

OPTIONS: Final = tuple(sorted(SETTING_NAMES))

Values = Mapping[str, str | int | bool]
ByGuest = Mapping[str, Values]
"""Values by option, by the uuid of a guest."""


@dataclass(frozen=True, slots=True)
class GuestSettingsPlan:
    """What is to be set, what counts as applied once that is done, and conflicts in sentences.

    ``unset`` are settings of former revisions that the present one leaves out.
    """

    changes: ByGuest
    applied: ByGuest
    conflicts: tuple[str, ...] = ()
    unset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def parse(revision: Written) -> dict[str, dict[str, str | int | bool]]:
    """What a revision wants of guests.

    :raises FleetError: there is no such option, or a section or a value is none.
    """
    found: dict[str, dict[str, str | int | bool]] = {}
    for section, options in revision.items():
        if not section.startswith(GUEST):
            continue
        try:
            guest = str(uuid.UUID(section.removeprefix(GUEST)))
        except ValueError as error:
            raise FleetError(f"[{section}]: a guest is named by its uuid") from error
        if guest in found:
            raise FleetError(f"[{section}]: another section is of the same guest")
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise FleetError(f"[{section}] {unknown[0]}: guests have {', '.join(OPTIONS)}")
        try:
            found[guest] = {name: _plain_value(name, text) for name, text in options.items()}
        except ValueError as error:
            raise FleetError(f"[{section}] {error}") from error
    return found


def _plain_value(name: str, text: str) -> str | int | bool:
    """A value as JSON has it.

    :raises ValueError: naming the option.
    """
    try:
        value = read_setting(name, text)
    except ValueError as error:
        raise ValueError(f"{name} = {text!r}: {error}") from error
    return value if isinstance(value, int) else str(value)


def plan(wanted: ByGuest, applied: ByGuest, present: ByGuest) -> GuestSettingsPlan:
    """What follows from what is wanted of guests, was applied, and is so now.

    Of guests that are not there nothing is remembered: when they come back, they have what they started with.
    """
    changes: dict[str, dict[str, str | int | bool]] = {}
    after: dict[str, dict[str, str | int | bool]] = {}
    conflicts = []
    unset = {
        guest: tuple(sorted(left_out))
        for guest, options in applied.items()
        if guest in present and (left_out := options.keys() - wanted.get(guest, {}).keys())
    }
    for guest, options in wanted.items():
        if guest not in present:
            continue
        for name, value in options.items():
            now, before = present[guest][name], applied.get(guest, {}).get(name)
            if now != value and before is not None and now != before:
                after.setdefault(guest, {})[name] = before
                conflicts.append(
                    f"guest {guest}: {name} was set to '{now}' on the host, after the fleet had set"
                    f" '{before}'; the fleet wants '{value}': set that on the host, or leave it out of the"
                    " next revision"
                )
                continue
            after.setdefault(guest, {})[name] = value
            if now != value:
                changes.setdefault(guest, {})[name] = value
    return GuestSettingsPlan(changes, after, tuple(conflicts), unset)
