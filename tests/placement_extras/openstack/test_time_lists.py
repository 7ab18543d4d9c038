"""The commands of `openstack` for events, claims that end and limits, without a service."""

import json
from typing import Any

from placement_extras.openstack.reservations import ListReservations
from placement_extras.openstack.time_lists import (
    ENDING_COLUMNS,
    EVENT_COLUMNS,
    LIMIT_COLUMNS,
    ListEndingClaims,
    ListReservationLimits,
    ListTimeEvents,
)
from tests.placement_extras.openstack.command_client import FIRST, GUEST, SECOND, CommandClient, run

END = "2026-12-24T18:00:00.000Z"
UNKNOWN = "0b5d0a34-6bb5-4a2f-9d6e-2f8a4c1b7e90"


class PagingClient(CommandClient):
    """A client that also records the queries of its requests."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        super().__init__(*map(json.dumps, answers))
        self.queries: list[dict[str, Any]] = []

    def request(self, method: str, path: str, **options: Any) -> Any:
        if path != "/resource_providers":
            self.queries.append(options["params"])
        return super().request(method, path, **options)


def test_events_are_listed_page_by_page_with_the_names_of_hosts() -> None:
    event = {
        "kind": "claim.ends_soon",
        "time": END,
        "consumer_uuid": GUEST,
        "project_id": "web",
        "starts_at": None,
        "ends_at": END,
        "on_end": "evict",
    }
    link = {"rel": "next", "href": f"/elsewhere/ext/v1/time_events?since={END}&limit=1&marker=m"}
    client = PagingClient(
        {"events": [{**event, "root_provider_uuids": [FIRST, UNKNOWN]}], "links": [link]}, {"events": [event]}
    )
    (columns, rows), _ = run(ListTimeEvents, client, "--since", END, "--notice", "60")
    assert columns == EVENT_COLUMNS
    shown = (END, "claim.ends_soon", GUEST, "web", None, END, "evict")
    assert list(rows) == [(*shown, f"web1,{UNKNOWN}"), (*shown, "")]
    assert client.queries == [{"since": END, "notice": 60}, {"since": END, "limit": "1", "marker": "m"}]


def test_claims_that_end_are_listed_for_a_host_by_name_and_for_all_hosts() -> None:
    claim = {
        "consumer_uuid": GUEST,
        "consumer_generation": 2,
        "project_id": "web",
        "consumer_type": "VM",
        "ends_at": END,
        "on_end": "none",
    }
    client = PagingClient({"claims": [claim]})
    (columns, rows), said = run(ListEndingClaims, client, "--root", "web2", "--preemptible")
    assert columns == ENDING_COLUMNS
    assert list(rows) == [(GUEST, 2, "web", "VM", END, "none", None, "web2", None, "")]
    assert said == ""
    assert client.queries == [{"root": SECOND, "preemptible": "true"}]
    taken = {
        "reservation": UNKNOWN,
        "allocations": {FIRST: {"resources": {"VCPU": 2}}, SECOND: {"resources": {"VCPU": 1}}},
    }
    client = PagingClient(
        {"claims": [{**claim, "kept_until": END, "root_provider_uuids": [FIRST, SECOND], **taken}]}
    )
    (_, rows), _ = run(ListEndingClaims, client, "--reservation", UNKNOWN)
    assert list(rows) == [(GUEST, 2, "web", "VM", END, "none", END, "web1,web2", UNKNOWN, "VCPU=3")]
    assert client.queries == [{"reservation": UNKNOWN}]


def test_an_empty_list_says_which_claims_it_would_have() -> None:
    (_, rows), said = run(ListEndingClaims, PagingClient({"claims": []}))
    assert list(rows) == []
    assert said == "No claim with an end time was found; other claims are not listed.\n"


def test_limits_are_listed_with_their_used_part() -> None:
    limits = {
        "max_duration": 60,
        "max_ahead": None,
        "reservations": {"limit": 9, "used": 2},
        "amounts": {"VCPU": {"limit": 8, "used": 5}},
        "hours": {"PGPU": {"limit": 500, "used": 12.5}},
        "hours_period": 2_592_000,
    }
    client = PagingClient({"limits": limits})
    (columns, rows), _ = run(ListReservationLimits, client, "--project-id", "web")
    assert columns == LIMIT_COLUMNS
    assert rows == [
        ("seconds of a reservation", None, 60, None),
        ("seconds until its start", None, None, None),
        ("reservations", None, 9, 2),
        ("amount at once", "VCPU", 8, 5),
        ("hours within 30 days", "PGPU", 500, 12.5),
    ]
    assert client.queries == [{"project_id": "web"}]


def test_reservations_of_all_pages_are_listed() -> None:
    shown = {"uuid": GUEST, "project_id": "web", "group": None, "expires_at": END, "allocations": {}}
    link = {"rel": "next", "href": f"/ext/v1/reservations?limit=1000&project_id=web&marker={GUEST}"}
    client = PagingClient(
        {"reservations": [{**shown, "movable": True}], "links": [link]}, {"reservations": [shown]}
    )
    (columns, rows), _ = run(ListReservations, client, "--project-id", "web")
    movable = columns.index("movable")
    assert [row[movable] for row in rows] == [True, None]
    assert client.queries[1] == {"limit": "1000", "project_id": "web", "marker": GUEST}
