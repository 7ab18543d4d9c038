"""Puts into effect what the fleet wants of guests, and remembers what it has put."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from compute_agent.conf import written
from compute_agent.files import read_own, write_durably
from compute_agent.fleet.guests import OPTIONS, ByGuest, GuestSettingsPlan, parse, plan
from compute_agent.fleet.revision import FleetError
from compute_agent.pipeline.worker import GuestPipeline

LOG = logging.getLogger(__name__)

FILE: Final = "fleet-guests.json"
"""In the state folder: the settings of guests that the fleet has set."""

Set = Callable[[str, Mapping[str, Any]], str]
"""Gives the guest of a uuid these settings; why that cannot be, empty if it was done."""


class FleetGuests:
    """Of one agent; ``set_guest`` changes a guest."""

    def __init__(self, pipeline: GuestPipeline, set_guest: Set) -> None:
        self._pipeline = pipeline
        self._set = set_guest

    def bring_about(self, revision: Path) -> list[str]:
        """Have guests be as the revision in a file wants them; what stands against that, a sentence each.

        :raises FleetError: what was applied cannot be read or kept.
        """
        if not self._pipeline.has_taken_over:
            return []
        wanted = parse(written.read([revision]))
        path = revision.with_name(FILE)
        applied = _read(path)
        if not wanted and not applied:
            return []
        planned = plan(wanted, applied, self._present())
        refused = self._change(planned)
        # afterwards: what was set and not remembered is found to be as wanted, while what was remembered and
        # not set would look as if somebody had changed it
        after = {
            guest: applied.get(guest, {}) if guest in refused else each
            for guest, each in planned.applied.items()
        }
        if after != applied:
            _write(path, after)
        return [*planned.conflicts, *refused.values()]

    def _present(self) -> ByGuest:
        return {
            view.guest.uuid: {name: getattr(view.guest.settings, name) for name in OPTIONS}
            for view in self._pipeline.views()
        }

    def _change(self, planned: GuestSettingsPlan) -> dict[str, str]:
        """Those that could not be changed, with the reason."""
        refused = {}
        for guest, values in planned.changes.items():
            if reason := self._set(guest, values):
                refused[guest] = f"guest {guest}: {reason}"
            else:
                LOG.info("Guest %s is set as the fleet wants: %s", guest, dict(values))
        return refused


def _read(path: Path) -> dict[str, dict[str, str | int]]:
    try:
        found = json.loads(read_own(path))
        if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
            raise ValueError("it has another form")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FleetError(
            f"{path}, what the fleet has set of guests, cannot be read: {error}. Remove it, and guests are"
            " set anew"
        ) from error
    return found


def _write(path: Path, applied: ByGuest) -> None:
    try:
        write_durably(path, json.dumps(applied).encode())
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error}") from error
