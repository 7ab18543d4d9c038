"""Settings of single guests in a revision, and conflicts with settings that were made on the host.

A section ``[guest:UUID]`` has the settings of ``compute-agent guest set``. A setting made on the host takes
precedence over a setting of the fleet. If a later revision leaves out a setting, the setting is unset. Each
setting is compared three ways, as in a merge of texts: the *wanted* value of the revision, the last *applied*
value, and the value that the guest has *now*.

- *now* equals *wanted*: no change
- no value was *applied* yet: the wanted value is set
- *now* equals *applied*: the wanted value is set, because the setting was not changed on the host
- *now* is another value: a conflict; the setting stays, and the conflict is reported
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
"""For each guest, by its uuid: the values of its settings, by their names."""


@dataclass(frozen=True, slots=True)
class GuestSettingsPlan:
    """The changes to the settings of guests that a revision demands.

    :ivar applied: the values that count as applied after the changes.
    :ivar conflicts: a sentence for each setting that does not change, because it was changed on the host.
    :ivar unset: the names of settings to unset, by guest: the settings that only a former revision has.
    """

    changes: ByGuest
    applied: ByGuest
    conflicts: tuple[str, ...] = ()
    unset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def parse(revision: Written) -> dict[str, dict[str, str | int | bool]]:
    """The settings of guests in a revision, by uuid and name.

    :raises FleetError: a section, an option or a value is wrong.
    """
    found: dict[str, dict[str, str | int | bool]] = {}
    for section, options in revision.items():
        if not section.startswith(GUEST):
            continue
        try:
            guest = str(uuid.UUID(section.removeprefix(GUEST)))
        except ValueError as error:
            raise FleetError(f"[{section}]: the name of the section has to be the uuid of a guest") from error
        if guest in found:
            raise FleetError(f"[{section}]: another section is of the same guest")
        if unknown := sorted(options.keys() - set(OPTIONS)):
            known = ", ".join(OPTIONS)
            raise FleetError(f"[{section}] {unknown[0]}: there is no such setting; there are {known}")
        try:
            found[guest] = {name: _plain_value(name, text) for name, text in options.items()}
        except ValueError as error:
            raise FleetError(f"[{section}] {error}") from error
    return found


def _plain_value(name: str, text: str) -> str | int | bool:
    """Parse the value of a setting into a type that JSON has.

    :raises ValueError: the value is wrong. The message names the option.
    """
    try:
        value = read_setting(name, text)
    except ValueError as error:
        raise ValueError(f"{name} = {text!r}: {error}") from error
    # A bool is an int in Python, and JSON keeps it a bool.
    return value if isinstance(value, int) else str(value)


def plan_settings(wanted: ByGuest, applied: ByGuest, present: ByGuest) -> GuestSettingsPlan:
    """Compare the settings of all guests with those of a revision, and return the changes.

    The plan drops the applied values of guests that are gone.
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
                # The applied value stays the former one, so the next comparison finds the conflict again.
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
