"""The commands of `openstack` for calendar addresses, without a service."""

import json

from placement_extras.openstack.feeds import CreateCalendar, DeleteCalendar, ShowCalendar
from tests.placement_extras.openstack.command_client import CommandClient, run

PATH = "/ext/v1/reservation_calendar"
CALENDAR = {"project_id": "web", "created_at": "2026-12-24T18:00:00.000Z"}


def test_an_address_is_made_shown_and_revoked() -> None:
    url = "https://placement.example.org/console/feeds/SECRET.ics"
    client = CommandClient(
        json.dumps({"calendar": CALENDAR | {"url": url}}), json.dumps({"calendar": CALENDAR}), ""
    )
    made, _ = run(CreateCalendar, client, "--project-id", "web")
    assert made == (("project_id", "created_at", "url"), (*CALENDAR.values(), url))
    shown, _ = run(ShowCalendar, client)
    assert shown == (("project_id", "created_at"), tuple(CALENDAR.values()))
    assert run(DeleteCalendar, client) == (None, "")
    assert client.asked == [(method, PATH, None) for method in ("POST", "GET", "DELETE")]
