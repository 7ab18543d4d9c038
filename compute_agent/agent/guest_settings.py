"""Settings of guests: checks requests against the host and the configuration, and changes running guests.

The socket's methods and the fleet change guests by the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from marshmallow import Schema

from compute_agent.agent.parameters import SetSchema, load
from compute_agent.agent.protocol import RequestError
from compute_agent.classification.resolution import parse_known_classes
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import SETTING_NAMES, MemoryType, SettingSource, setting_text
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import ConfigureGuest
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.worker import GuestPipeline

ANSWER_SECONDS: Final = 50.0
"""How long the worker is waited for; a client of the socket waits 60 s (:func:`..protocol.ask`)."""


class GuestConfigurator:
    """Finds guests, and gives them other settings. For any thread but the worker."""

    def __init__(self, pipeline: GuestPipeline, in_force: ConfigurationInForce) -> None:
        self._pipeline = pipeline
        self._in_force = in_force

    def load_settings(self, schema: Schema, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Parameters as a schema wants them, with classes and memory that there are here.

        :raises RequestError: naming those that are wrong.
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
        """Set and unset settings of a running guest, in effect when this returns.

        :raises RequestError: the settings cannot be changed, or the guest is not there.
        :raises TimeoutError: the worker has no time.
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
        """Set and unset settings of the guest of a uuid for the fleet. The obstacle; empty if it was done."""
        try:
            self.change_guest({"guest": guest, "unset": list(unset), **values}, SettingSource.FLEET)
        except (RequestError, TimeoutError) as error:
            return str(error) or "the agent is busy"
        return ""

    def list_views(self) -> list[GuestView]:
        """All guests.

        :raises RequestError: it is not known which guests run.
        """
        try:
            self._pipeline.check_taken_over()
        except DriverError as error:
            raise RequestError(str(error)) from error
        return self._pipeline.guest_views()

    def find_guest(self, wanted: str) -> GuestView:
        """The guest of a uuid, or else of a name.

        :raises RequestError: there is no such guest, or several have the name.
        """
        views = self.list_views()
        # The name of one guest may be the uuid of another, so uuids come first.
        found = [view for view in views if view.guest.uuid == wanted] or [
            view for view in views if view.guest.name == wanted
        ]
        if len(found) != 1:
            reason = "there is no guest" if not found else f"{len(found)} guests are named"
            raise RequestError(f"{reason} {wanted}")
        return found[0]
