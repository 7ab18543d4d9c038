"""Checks requested settings of guests against the host and the configuration, and changes running guests.

Requests on the UNIX socket and settings from the fleet's file both use this code. ``config check`` resolves
the settings again with the rules of its configuration files: the running agent sends the values from which
the settings of each guest follow, as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from marshmallow import Schema

from compute_agent.agent.parameters import SetSchema, load
from compute_agent.agent.protocol import RequestError
from compute_agent.classification.resolution import (
    ClassificationPolicy,
    parse_known_classes,
    resolve_settings,
)
from compute_agent.classification.rules import GuestFacts
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.model.guest import Guest, GuestIdentity
from compute_agent.model.guest_settings import (
    SETTING_NAMES,
    MemoryType,
    SettingSource,
    read_setting,
    setting_text,
)
from compute_agent.model.messages import DriverError, named_few
from compute_agent.pipeline.events import ConfigureGuest
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.guest_settings import ResolutionInput
from compute_agent.pipeline.worker import GuestPipeline

ANSWER_SECONDS: Final = 50.0
"""The seconds for which a request waits for the worker: less than the 60 s for which a client waits for an
answer (:func:`compute_agent.agent.protocol.call_agent`).
"""

_MAX_UUIDS: Final = 5
"""Maximum number of guests of the same name that an error names."""


class GuestConfigurator:
    """Finds guests, and changes their settings. Any thread except the worker may call the methods."""

    def __init__(self, pipeline: GuestPipeline, in_force: ConfigurationInForce) -> None:
        self._pipeline = pipeline
        self._in_force = in_force

    def load_settings(self, schema: Schema, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Check the parameters of a request, and return their values after the schema has converted them.

        Classes that the parameters name must be configured, and a named memory type must exist on this host.

        :raises RequestError: a parameter is wrong; the error names it.
        """
        conf = self._in_force.current
        body, known = load(schema, params), parse_known_classes(conf.options)
        for name, value in body.items():
            if missing := known.missing_class(name, value):
                raise RequestError(missing)
        wanted = body.get("memory_type", MemoryType.ANY)
        present = frozenset(self._pipeline.host_state.topology.memory_types.values())
        if wanted is not MemoryType.ANY and wanted not in present:
            there = ", ".join(sorted(present)) or "none that can be told"
            raise RequestError(f"this host has no memory of type {wanted}; it has {there}")
        return body

    def change_guest(self, params: Mapping[str, Any], source: SettingSource = SettingSource.BY_HAND) -> Guest:
        """Set and unset settings of a running guest; the changes are in effect when this method returns.

        :param params: the parameters of ``guest.set``.
        :param source: the source that is recorded for the settings.
        :raises RequestError: the settings cannot be changed, or the guest does not exist.
        :raises TimeoutError: the worker has not answered in time.
        """
        body = dict(self.load_settings(SetSchema(), params))
        guest = self.find_guest(body.pop("guest")).guest
        unset = tuple(body.pop("unset"))
        if not body and not unset:
            raise RequestError(f"nothing to change: {' or '.join((*SETTING_NAMES, 'unset'))} has to be given")
        if both := sorted(body.keys() & set(unset)):
            raise RequestError(f"{both[0]} is both set and unset: give one of the two")
        texts = {name: setting_text(value) for name, value in body.items()}
        event = ConfigureGuest(guest.uuid, texts, unset, source)
        try:
            self._pipeline.submit(event).result(ANSWER_SECONDS)
        except DriverError as error:
            raise RequestError(str(error)) from error
        return guest

    def set_guest(self, guest: str, values: Mapping[str, Any], unset: Collection[str] = ()) -> str:
        """Set and unset settings of a guest as the configuration of the fleet says.

        :param guest: the uuid of the guest.
        :returns: the reason why the change failed; empty if the change is done.
        """
        try:
            self.change_guest({"guest": guest, "unset": list(unset), **values}, SettingSource.FLEET)
        except (RequestError, TimeoutError) as error:
            return str(error) or "the agent is busy"
        return ""

    def list_views(self) -> list[GuestView]:
        """The views of all known guests. Guests of drivers that have not listed their guests yet are missing.

        :raises RequestError: no driver has listed its running guests yet.
        """
        try:
            self._pipeline.check_taken_over(in_part=True)
        except DriverError as error:
            raise RequestError(str(error)) from error
        return self._pipeline.guest_views()

    def find_guest(self, wanted: str) -> GuestView:
        """Find a guest by its uuid or, if no guest has this uuid, by its name.

        :raises RequestError: no guest has this uuid or name, or several guests have the name.
        """
        views = self.list_views()
        # The name of one guest can be the uuid of another, so uuids come first.
        found = [view for view in views if view.guest.uuid == wanted] or [
            view for view in views if view.guest.name == wanted
        ]
        if not found:
            if missing := self._pipeline.missing_guests_reason:
                raise RequestError(f"it is not known whether guest {wanted} runs: {missing}")
            raise RequestError(f"there is no guest {wanted}")
        if len(found) > 1:
            uuids = named_few([view.guest.uuid for view in found], _MAX_UUIDS)
            raise RequestError(f"{len(found)} guests are named {wanted}: give the uuid: {uuids}")
        return found[0]


# JSON has no sets, so these fields are sent as sorted lists.
_SETS = ("resource_classes", "traits")


def input_document(one: ResolutionInput) -> dict[str, Any]:
    """The values from which a guest's settings follow, and the settings in force, as JSON values."""
    guest = one.guest
    facts = asdict(one.facts)
    return {
        "uuid": guest.uuid,
        "name": guest.name,
        "vcpus": guest.settings.vcpus,
        "facts": {**facts, **{name: sorted(facts[name]) for name in _SETS}},
        "declared": _setting_texts(guest.declared),
        "declared_by": guest.declared_by.value,
        "manual": {source.value: _setting_texts(values) for source, values in one.manual.items()},
        "settings": {name: setting_text(getattr(guest.settings, name)) for name in SETTING_NAMES},
    }


def check_guests(
    policy: ClassificationPolicy, documents: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a row for each guest: the rule that matches, the settings that would change, and problems.

    ``policy`` has the rules of the other configuration. ``documents`` are results of input_document().
    """
    return [_check_guest(policy, document) for document in documents]


def _check_guest(policy: ClassificationPolicy, document: Mapping[str, Any]) -> dict[str, Any]:
    facts = dict(document["facts"])
    facts |= {name: frozenset(facts[name]) for name in _SETS}
    found = resolve_settings(
        policy,
        GuestFacts(**{**facts, "identity": GuestIdentity(**facts["identity"])}),
        document["vcpus"],
        _values(document["declared"]),
        SettingSource(document["declared_by"]),
        {SettingSource(source): _values(texts) for source, texts in document["manual"].items()},
    )
    now = document["settings"]
    after = {name: setting_text(getattr(found.settings, name)) for name in SETTING_NAMES}
    return {
        "guest": document["uuid"],
        "name": document["name"],
        "rule": found.rule,
        "changes": [
            f"{name}: {now[name] or 'none'} -> {after[name] or 'none'} ({found.sources[name]})"
            for name in SETTING_NAMES
            if now[name] != after[name]
        ],
        "problems": list(found.problems),
    }


def _setting_texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: setting_text(value) for name, value in values.items()}


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: read_setting(name, text) for name, text in texts.items()}
