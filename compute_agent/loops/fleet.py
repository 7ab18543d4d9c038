"""Follows the settings of the fleet, a group of hosts: stores and applies each new revision of the settings.

This module only stores a new revision in the state folder. The main thread notices that the file has changed,
and reloads the configuration.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import CollectorRegistry, Gauge

from compute_agent.conf import written
from compute_agent.files import read_own, write_durably
from compute_agent.fleet.configuration import (
    KEPT_FILE,
    ConfigurationCheck,
    FleetSettings,
    follow_source,
    overruled_options,
)
from compute_agent.fleet.guests import OPTIONS, ByGuest, GuestSettingsPlan, parse, plan_settings
from compute_agent.fleet.revision import FleetError, FleetRevision, SourceError
from compute_agent.inventory.attributes import FLEET_GENERATION, FLEET_GROUP, FLEET_TROUBLE
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration, WakeReport
from compute_agent.model.messages import ConfigError
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.threads import PeriodicTask, ThreadSpec, log_failures

LOG = logging.getLogger(__name__)

FILE: Final = "fleet-guests.json"
"""Name of the file in the state folder that records the settings of guests that the fleet has set."""


GuestSetter = Callable[[str, Mapping[str, Any], Collection[str]], str]
"""Sets and unsets settings of the guest with a uuid; returns the reason of a failure, or ``""``."""

GuestApplier = Callable[[Path], list[str]]
"""Applies the settings of single guests in the file of a revision; see :meth:`FleetGuests.bring_about`."""


class FleetGuests:
    """Applies the settings of single guests that a revision contains, with the function ``set_guest``."""

    def __init__(self, pipeline: GuestPipeline, set_guest: GuestSetter) -> None:
        self._pipeline = pipeline
        self._set = set_guest

    def bring_about(self, revision: Path) -> list[str]:
        """Apply the revision in a file to guests; return a sentence about each setting that was not applied.

        :raises FleetError: the record of applied settings cannot be read or written.
        """
        # Until the running guests are known, all guests would count as absent, and their record would be
        # deleted.
        if not self._pipeline.has_taken_over:
            return []
        # The settings are read from the file, because settings of single guests are no options of the
        # configuration.
        wanted = parse(written.read([revision]))
        path = revision.with_name(FILE)
        applied = read_applied(path)
        if not wanted and not applied:
            return []
        planned = plan_settings(wanted, applied, self._present_settings())
        refused = self._change_guests(planned)
        # Guests are changed before the record is written. If the agent crashes in between, a setting without
        # a record does no harm. A record without its setting would look like a change by hand.
        after = {
            guest: applied.get(guest, {}) if guest in refused else each
            for guest, each in planned.applied.items()
        }
        if after != applied:
            write_applied(path, after)
        return [*planned.conflicts, *refused.values()]

    def _present_settings(self) -> ByGuest:
        return {
            view.guest.uuid: {name: getattr(view.guest.settings, name) for name in OPTIONS}
            for view in self._pipeline.guest_views()
        }

    def _change_guests(self, planned: GuestSettingsPlan) -> dict[str, str]:
        """Change the settings of guests; return the reasons of refusals, by uuid."""
        refused = {}
        for guest in sorted(planned.changes.keys() | planned.unset.keys()):
            values, unset = planned.changes.get(guest, {}), planned.unset.get(guest, ())
            if reason := self._set(guest, values, unset):
                refused[guest] = f"guest {guest}: {reason}"
            else:
                LOG.info(
                    "The fleet now sets for guest %s: %s; it no longer sets: %s",
                    guest,
                    dict(values) or "nothing",
                    ", ".join(unset) or "nothing",
                )
        return refused


def read_applied(path: Path) -> dict[str, dict[str, str | int | bool]]:
    """Read the settings that were applied to guests, by guest and option; empty if the file does not exist.

    :raises FleetError: the file cannot be read, or is damaged.
    """
    try:
        found = json.loads(read_own(path))
        if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
            raise ValueError("it does not have the form of this record")
    except FileNotFoundError:
        # Nothing was applied so far.
        return {}
    except (OSError, ValueError) as error:
        raise FleetError(
            f"{path}, the record of guests' settings from the fleet, cannot be read: {error}. Remove it, and"
            " the agent sets the guests again"
        ) from error
    return found


def write_applied(path: Path, applied: ByGuest) -> None:
    """Write the settings that were applied to guests.

    :raises FleetError: the file cannot be written.
    """
    try:
        write_durably(path, json.dumps(applied).encode())
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error}") from error


_IDLE_SECONDS: Final = 3600.0
"""Seconds between two rounds on a host without a fleet; a reload wakes the thread."""
_MAX_TOLD: Final = 250
"""Maximum length, in characters, of the attribute in Placement that says why the host does not follow its
fleet.
"""


FLEET_THREAD: Final = ThreadSpec(
    "fleet",
    "``[fleet] interval``; at once after a reload",
    "follows the source of the fleet's settings, and applies those of single guests",
    "that of its state, which a reload changes, too",
    "the source; files of the state folder; the driver; the worker; wakes ``report``",
)


class FleetLoop(AgentLoop):
    """Follows the source of the fleet's settings, and reports whether this host has these settings.

    :param check: checks whether the host can work with a configuration.
    :param changed: called when the state that is reported to Placement has changed.
    :param bring_about: applies the revision in a file to guests.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        check: ConfigurationCheck,
        registry: CollectorRegistry,
        changed: WakeReport = lambda: None,
        bring_about: GuestApplier = lambda revision: [],
    ) -> None:
        self._options = conf
        self._check = check
        self._changed = changed
        self._bring_about = bring_about
        self._state = _state_of(conf)
        self._changing = threading.Lock()
        """Held during a change of ``_state``, because follow_fleet() and reload() run in two threads."""
        self._thread = PeriodicTask(
            FLEET_THREAD,
            self.follow_fleet,
            self._look_pause,
            log_failures(LOG, "The settings of the fleet cannot be followed"),
        )
        self._generation = Gauge(
            "compute_agent_fleet_generation",
            "Generation of the fleet's settings in force; 0 without settings of a fleet.",
            ["group"],
            registry=registry,
        )
        self._generation.labels(self._state.group).set(self._state.generation)
        trouble = Gauge(
            "compute_agent_fleet_trouble",
            "1 if the host does not follow its fleet for this reason, otherwise 0; `compute-agent status`"
            " says more.",
            ["reason"],
            registry=registry,
        )
        for reason in FleetTrouble:
            trouble.labels(reason).set_function(partial(self._is_troubled, reason))

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration, which can contain another revision, and read the source at once."""
        self._options = conf.options
        state = _state_of(conf.options)
        with self._changing:
            # The text about trouble stays until the next read of the source.
            self._show_state(replace(state, trouble=self._state.trouble, reasons=self._state.reasons))
        self._thread.wake()

    def status_fields(self) -> dict[str, object]:
        """The fields about the fleet in the output of ``status``."""
        state = self._state
        return {
            "fleet": str(state.revision or (state.group and f"{state.group}, and no settings of it")),
            "fleet_trouble": state.trouble,
            "fleet_overruled": list(state.overruled),
        }

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the tree with the state of the fleet as attributes of the agent's first provider.

        An unreachable source is reported only by the metric and by ``status``, and not as an attribute.
        Otherwise all hosts of the fleet would write the attribute to Placement at the same time, and remove
        it at the same time.
        """
        state = self._state
        if not state.group:
            return tree
        told: dict[str, str | float] = {FLEET_GROUP: state.group, FLEET_GENERATION: state.generation}
        if state.reasons - {FleetTrouble.SOURCE}:
            told[FLEET_TROUBLE] = state.trouble[:_MAX_TOLD]
        return tree.with_attributes(told)

    def follow_fleet(self) -> None:
        """Read the source once, store a new revision, and apply the revision in force to guests."""
        conf = self._options
        try:
            fleet = FleetSettings.from_options(conf)
            taken = None if fleet is None else follow_source(fleet, conf, self._check)
            trouble, reasons = "", set()
        except (FleetError, ConfigError) as error:
            reason = FleetTrouble.SOURCE if isinstance(error, SourceError) else FleetTrouble.REVISION
            taken, trouble, reasons = None, str(error), {reason}
        # The stored revision stays in force while its source cannot be read.
        obstacles = self._apply_to_guests(conf)
        if obstacles:
            reasons.add(FleetTrouble.GUESTS)
        trouble = "; ".join(filter(None, (trouble, *obstacles)))
        if taken is not None:
            LOG.info("The agent has stored new settings of the fleet, and applies them soon: %s", taken)
        before = self._state.trouble
        if trouble != before:
            if trouble:
                LOG.error("The host does not follow its fleet: %s", trouble)
            else:
                LOG.info("The host follows its fleet again")
        with self._changing:
            self._show_state(replace(self._state, trouble=trouble, reasons=frozenset(reasons)))

    def _is_troubled(self, reason: FleetTrouble) -> bool:
        return reason in self._state.reasons

    def _apply_to_guests(self, conf: cfg.ConfigOpts) -> list[str]:
        """Apply the revision in force to guests; return a sentence about each setting not applied."""
        revision = Path(conf.state_path) / KEPT_FILE
        # After the host has left its group, for example, the stored revision is not in force.
        if revision not in written.files_of(conf):
            return []
        try:
            return self._bring_about(revision)
        except (FleetError, cfg.Error, OSError) as error:
            return [str(error)]

    def _show_state(self, state: _FleetState) -> None:
        if state != self._state:
            self._state = state
            # Without this call, the series of a former group would stay in the metrics.
            self._generation.clear()
            self._generation.labels(state.group).set(state.generation)
            self._changed()

    def _look_pause(self, took: float) -> float:
        fleet = self._options.fleet
        return float(fleet.interval if fleet.group else _IDLE_SECONDS)


class FleetTrouble(StrEnum):
    """The reasons why a host does not follow its fleet, as labels of the metric."""

    SOURCE = "source"
    """The agent cannot read the source of the settings."""
    REVISION = "revision"
    """The agent refuses the new revision, or cannot use the stored revision."""
    GUESTS = "guests"
    """Some guests do not have the settings of the revision in force."""


@dataclass(frozen=True, slots=True)
class _FleetState:
    """The state of the fleet on this host.

    :ivar group: the name of the group of hosts; empty if the host has no fleet.
    :ivar revision: the stored revision; None if there is no stored revision.
    :ivar overruled: options of the revision that the host's own configuration files set, too.
    :ivar trouble: the reason as text why the host does not follow its fleet; empty if the host follows it.
    :ivar reasons: the kinds of trouble for which the host does not follow its fleet.
    """

    group: str = ""
    revision: FleetRevision | None = None
    overruled: tuple[str, ...] = ()
    trouble: str = ""
    reasons: frozenset[FleetTrouble] = frozenset()

    @property
    def generation(self) -> int:
        """The generation of the stored revision of the present group; 0 if there is no such revision."""
        return self.revision.generation if self.revision and self.revision.group == self.group else 0


def _state_of(conf: cfg.ConfigOpts) -> _FleetState:
    try:
        fleet = FleetSettings.from_options(conf)
        if fleet is None:
            return _FleetState()
        return _FleetState(fleet.group, fleet.kept_revision(), tuple(overruled_options(conf)))
    except (FleetError, ConfigError, cfg.Error, OSError) as error:
        return _FleetState(conf.fleet.group, trouble=str(error), reasons=frozenset({FleetTrouble.REVISION}))
