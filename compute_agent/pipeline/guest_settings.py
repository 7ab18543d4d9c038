"""Resolves the settings of guests from all sources, and stores settings made by hand and by the fleet.

Settings made by hand cannot be stored in the metadata of a domain, because Nova writes the domain's
definition again at each hard reboot and resize. A file of the agent keeps these settings by uuid of the
guest. The settings stay in this file until they are unset, or until the guest has left this host for good.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.classification.resolution import ManualValues, resolve_settings
from compute_agent.classification.rules import GuestFacts
from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.files import write_durably
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import SETTING_NAMES, SettingSource, read_setting, setting_text
from compute_agent.pipeline.guest_cache import ConsumerFacts, GuestCache
from compute_agent.pipeline.host_state import HostState

LOG = logging.getLogger(__name__)

FILE_NAME: Final = "guest-settings.json"
"""Name of the file with settings by hand and by the fleet, in the agent's state folder."""

_VERSION: Final = 1
"""Version of the content of the file."""

GONE_SECONDS: Final = 600.0
"""Seconds after which the settings of a guest that left this host are removed. A hard reboot takes less
time.
"""

MANUAL_SOURCES: Final = (SettingSource.BY_HAND, SettingSource.FLEET)
"""The sources of the settings that the file contains."""

_Texts = Mapping[str, Mapping[SettingSource, Mapping[str, str]]]
"""The values of settings as text, by uuid of the guest, source, and name of the setting."""


class ManualSettings:
    """The file of settings by hand and by the fleet; the worker changes it, any thread reads it."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file. Without a file there are no settings. A damaged file is renamed.

        :param path: the file; None means that settings do not outlive the process.
        :param clock: returns monotonic seconds.
        :raises UnsafeFileError: other users could have written the file.
        :raises OSError: the file cannot be read, or a damaged file cannot be renamed.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._texts: _Texts = {} if path is None else _load_texts(path)
        self._absent: dict[str, float] = {}
        """The time, in monotonic seconds, since which a guest with settings has been absent, by uuid."""

    @classmethod
    def look_up(cls, path: Path) -> ManualSettings:
        """Read a file for a command that must not change it; see :func:`kept_json.look_up`."""
        found = cls()
        found._texts = kept_json.look_up(path, _parse_texts, {})
        return found

    @property
    def guests(self) -> frozenset[str]:
        """The uuids of the guests with settings."""
        return frozenset(self._texts)

    def setting_texts(self, uuid: str, source: SettingSource) -> Mapping[str, str]:
        """The settings of a guest from one source: the value as text, by name of the setting."""
        return self._texts.get(uuid, {}).get(source, {})

    def values(self, uuid: str) -> ManualValues:
        """The parsed values of a guest's settings, by source and by name of the setting."""
        return {
            source: {name: read_setting(name, text) for name, text in texts.items()}
            for source, texts in self._texts.get(uuid, {}).items()
        }

    def change_settings(
        self, uuid: str, source: SettingSource, texts: Mapping[str, str], unset: Collection[str] = ()
    ) -> None:
        """Set and unset settings of a guest from one source, and wait until the changes are on disk.

        :raises OSError: the settings cannot be saved. The former settings stay in force.
        """
        kept = {name: text for name, text in self.setting_texts(uuid, source).items() if name not in unset}
        guest = {**self._texts.get(uuid, {}), source: {**kept, **texts}}
        self._replace({**self._texts, uuid: guest})
        self._absent.pop(uuid, None)

    def forget_guest(self, uuid: str) -> None:
        """Remove the settings of a guest that has left for good. A failure is logged."""
        try:
            self._replace({guest: texts for guest, texts in self._texts.items() if guest != uuid})
        except OSError as error:
            LOG.warning("Guest %s has gone, but its stored settings cannot be removed yet: %s", uuid, error)
            return
        self._absent.pop(uuid, None)

    def absent_guests(self, present: Collection[str]) -> list[str]:
        """The uuids of guests that have settings, and have been absent for at least :data:`GONE_SECONDS`.

        :param present: the uuids of the guests on this host.
        """
        now = self._clock()
        gone = self.guests - frozenset(present)
        # A guest that has come back is left out, so that its next absence counts from zero.
        self._absent = {uuid: self._absent.get(uuid, now) for uuid in gone}
        return sorted(uuid for uuid, since in self._absent.items() if now - since >= GONE_SECONDS)

    def _replace(self, texts: _Texts) -> None:
        texts = {
            guest: kept
            for guest, by_source in texts.items()
            if (kept := {source: values for source, values in by_source.items() if values})
        }
        # The file is written first, so that a full disk leaves file and memory unchanged.
        with self._lock:
            # Without a change nothing is written, which saves an fsync(2).
            if texts == self._texts:
                return
            if self._path is not None:
                write_durably(self._path, kept_json.dump(_VERSION, kept_json.checked_content(texts)))
            self._texts = texts


def _load_texts(path: Path) -> _Texts:
    return kept_json.load_state(
        path,
        _parse_texts,
        {},
        lambda aside, error: LOG.error(
            "The settings that operators made by hand are lost, because %s cannot be read. The agent has"
            " renamed the file to %s: %s",
            path,
            aside,
            error,
        ),
    )


def _parse_texts(content: bytes) -> _Texts:
    """Parse the content of the file with settings by hand and by the fleet.

    :raises ValueError: the content is damaged, or a setting is wrong; the text has the reason.
    """
    return kept_json.parse(_VERSION, content, lambda document: _read_data(kept_json.checked_data(document)))


def _read_data(data: Any) -> _Texts:
    return {
        str(guest): {
            _manual_source(source): {str(name): _checked_text(name, text) for name, text in texts.items()}
            for source, texts in by_source.items()
        }
        for guest, by_source in data.items()
    }


def _manual_source(text: str) -> SettingSource:
    source = SettingSource(text)
    if source not in MANUAL_SOURCES:
        raise ValueError(f"settings by {text!r} are not kept")
    return source


def _checked_text(name: str, text: Any) -> str:
    if name not in SETTING_NAMES:
        raise ValueError(f"there is no setting {name!r}")
    # This call only checks the text, which values() parses again.
    read_setting(name, kept_json.text(text))
    return str(text)


@dataclass(frozen=True, slots=True)
class ResolutionInput:
    """The inputs from which a guest's settings are resolved: facts, and settings by hand and by the fleet."""

    guest: Guest
    facts: GuestFacts
    manual: ManualValues


class GuestClassifier:
    """Resolves guests' settings, and reports a problem once; only the worker uses the object."""

    def __init__(self, manual: ManualSettings, recorder: EventRecorder, cache: GuestCache) -> None:
        self.manual = manual
        self._recorder = recorder
        self._cache = cache
        self._reported: dict[str, set[str]] = {}
        """The problems that were reported, by uuid of the guest."""

    def classify_guest(self, guest: Guest, consumer: ConsumerFacts) -> Guest:
        """Return the guest with its settings resolved from all sources."""
        # Before the first resolution of a guest, ``settings`` can have values that its driver has set.
        declared = (
            guest.declared if guest.setting_sources else {**guest.settings.chosen_values, **guest.declared}
        )
        found = resolve_settings(
            self._cache.host_state.classification,
            guest_facts(guest, consumer, self._cache.host_state),
            guest.settings.vcpus,
            declared,
            guest.declared_by,
            self.manual.values(guest.uuid),
        )
        return replace(
            guest,
            settings=found.settings,
            declared=declared,
            setting_sources=found.sources,
            setting_problems=(*guest.declared_problems, *found.problems),
            deferred_class=found.deferred_class,
            rule=found.rule,
        )

    def resolution_input(self, guest: Guest, consumer: ConsumerFacts) -> ResolutionInput:
        """The inputs from which a guest's settings are resolved.

        A caller can also resolve them by other rules.
        """
        facts = guest_facts(guest, consumer, self._cache.host_state)
        return ResolutionInput(guest, facts, self.manual.values(guest.uuid))

    def report_problems(self, guest: Guest) -> None:
        """Record the problems with settings of a guest that are new since the last report."""
        reported = self._reported.setdefault(guest.uuid, set())
        for problem in guest.setting_problems:
            if problem not in reported:
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.REFUSE,
                    guest,
                    "The settings of guest %s have a problem: %s",
                    problem,
                )
        if guest.setting_problems:
            self._reported[guest.uuid] = set(guest.setting_problems)
        # Solved problems are forgotten, so that a problem that comes back is reported again.
        else:
            del self._reported[guest.uuid]

    def report_change(self, before: Guest, after: Guest) -> None:
        """Record the changed settings of a running guest, each with the source of its new value."""
        changed = [
            f"{name} = {setting_text(getattr(after.settings, name)) or 'none'}"
            f" ({after.setting_sources.get(name, SettingSource.DEFAULT)})"
            for name in SETTING_NAMES
            if getattr(before.settings, name) != getattr(after.settings, name)
        ]
        if changed:
            words = ", ".join(changed)
            self._recorder.record_done(LOG.info, EventKind.CONFIGURE, after, "Guest %s is set to %s", words)

    def forget_guest(self, uuid: str) -> None:
        """Remove the stored settings and reported problems of a guest that has left for good."""
        self._reported.pop(uuid, None)
        self.manual.forget_guest(uuid)


def guest_facts(guest: Guest, consumer: ConsumerFacts, host_state: HostState) -> GuestFacts:
    """Collect the facts of a guest that rules match."""
    held = {uuid: amounts for uuid, amounts in (consumer.allocation or {}).items() if amounts}
    owner = consumer.owner
    return GuestFacts(
        guest.driver,
        guest.uuid,
        guest.name,
        guest.identity,
        "" if owner is None else owner.project_id,
        "" if owner is None else owner.user_id,
        "" if owner is None else owner.consumer_type or "",
        frozenset().union(*held.values()),
        frozenset().union(*(zone.traits for zone in host_state.all_zones if zone.uuid in held)),
        consumer.without_room and not held,
    )
