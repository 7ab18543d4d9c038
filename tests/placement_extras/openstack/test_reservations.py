"""The commands of `openstack` for reservations, without a service."""

import json
from datetime import datetime

import pytest
from osc_lib import exceptions

from placement_extras.openstack.reservations import (
    RESERVATION_COLUMNS,
    CreateCalendar,
    CreateReservation,
    DeleteCalendar,
    ListReservations,
    SetReservation,
    ShowCalendar,
    ShowReservation,
)
from tests.placement_extras.openstack.command_client import FIRST, GUEST, NODE, SECOND, CommandClient, run

CREATE = ("resources=VCPU:2", "--project-id", "web", "--user-id", "ann")
START = "2026-12-24T18:00:00Z"
CALENDARS = "/ext/v1/reservation_calendar"
CALENDAR = {"project_id": "web", "created_at": "2026-12-24T18:00:00.000Z"}


def reservation(**fields: object) -> str:
    """Return the answer with a reservation."""
    return json.dumps({"reservation": dict.fromkeys(RESERVATION_COLUMNS) | {"allocations": {}} | fields})


def test_a_duration_counts_from_the_start_of_a_reservation() -> None:
    client = CommandClient(reservation())
    run(CreateReservation, client, *CREATE, "--from", START, "--for", "14400.5")
    ((_, _, body),) = client.asked
    assert (body["starts_at"], body["expires_at"]) == (START, "2026-12-24T22:00:00.500Z")
    assert "expires_in" not in body


def test_a_reservation_may_start_now() -> None:
    client = CommandClient(*[reservation()] * 2)
    run(CreateReservation, client, *CREATE, "--from", "now", "--for", "60")
    run(CreateReservation, client, *CREATE, "--from", "now", "--until", START)
    first, second = (body for _, _, body in client.asked)
    start, end = (datetime.fromisoformat(first[name]) for name in ("starts_at", "expires_at"))
    assert (end - start).total_seconds() == 60
    assert (second["starts_at"][-1], second["expires_at"]) == ("Z", START)


def test_the_consumers_that_make_room_are_shown_if_there_are_any() -> None:
    made = json.loads(reservation())
    client = CommandClient(
        json.dumps(made | {"preempted": [], "moved": [FIRST]}),
        json.dumps(made | {"preempted": [], "moved": []}),
    )
    (columns, row), _ = run(CreateReservation, client, *CREATE, "--from", "now", "--for", "60")
    assert dict(zip(columns, row, strict=True))["moved"] == [FIRST]
    (columns, _), _ = run(CreateReservation, client, *CREATE, "--from", "now", "--for", "60")
    assert {"preempted", "moved"}.isdisjoint(columns)


@pytest.mark.parametrize("start", ["tomorrow", "2026-12-24T18:00:00", "9999-12-31T23:59:59Z"])
def test_a_start_without_a_meaning_is_refused_before_the_request(start: str) -> None:
    client = CommandClient()
    with pytest.raises(exceptions.CommandError, match=f"--from {start} with --for 60: a time in UTC"):
        run(CreateReservation, client, *CREATE, "--from", start, "--for", "60")
    assert client.asked == []


HELD = {
    NODE: {"resources": {"VCPU": 6, "MEMORY_MB": 512}},
    FIRST: {"resources": {"VCPU": 4}},
}


@pytest.mark.parametrize("provider", ["web2_NUMA_0", NODE])
def test_a_reservation_keeps_less(provider: str) -> None:
    client = CommandClient(*[reservation(generation=3, allocations=HELD)] * 2)
    kept = (f"{provider}:VCPU=2", "MEMORY_MB=256", f"{FIRST}:VCPU=0")
    run(SetReservation, client, GUEST, *(text for each in kept for text in ("--keep", each)))
    assert client.asked[1] == (
        "PUT",
        f"/ext/v1/reservations/{GUEST}",
        {"generation": 3, "allocations": {NODE: {"resources": {"VCPU": 2, "MEMORY_MB": 256}}}},
    )


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (("VCPU=2",), f"several providers have this class. Name one, as in {NODE}:VCPU"),
        (("DISK_GB=2",), "does not hold this class there"),
        ((f"{SECOND}:VCPU=2",), "does not hold this class there"),
        (("MEMORY_MB=-1",), "the amount is not a number"),
        ((f"{NODE}:VCPU=0", f"{FIRST}:VCPU=0", "MEMORY_MB=0"), "delete the reservation instead"),
    ],
)
def test_an_unclear_part_to_keep_is_refused_before_the_change(kept: tuple[str, ...], told: str) -> None:
    client = CommandClient(reservation(generation=3, allocations=HELD))
    with pytest.raises(exceptions.CommandError, match=told):
        run(SetReservation, client, GUEST, *(text for each in kept for text in ("--keep", each)))
    assert len(client.asked) == 1


@pytest.mark.parametrize(("option", "value"), [("--movable", True), ("--fixed", False)])
def test_a_window_is_made_movable_or_fixed(option: str, value: bool) -> None:
    client = CommandClient(reservation(generation=3), reservation())
    run(SetReservation, client, GUEST, option)
    assert client.asked[1][2] == {"generation": 3, "movable": value}


def test_the_list_shows_the_size_of_a_reservation_that_claims_use() -> None:
    shown = json.loads(reservation(allocations={}, claimed=HELD, on_end="evict"))["reservation"]
    (columns, rows), _ = run(ListReservations, CommandClient(json.dumps({"reservations": [shown]})))
    (row,) = (dict(zip(columns, each, strict=True)) for each in rows)
    assert (row["resources"], row["claimed"]) == ("MEMORY_MB=512,VCPU=10", "MEMORY_MB=512,VCPU=10")
    assert row["on_end"] == "evict"


def test_amounts_and_guests_are_shown_with_names_to_people_and_as_answered_to_programs() -> None:
    guest = {"consumer_uuid": GUEST, "consumer_type": "INSTANCE", "project_id": "web"}
    guests = [
        {**guest, "ends_at": None, "has_to_move": True},
        {**guest, "ends_at": START, "has_to_move": False},
    ]
    client = CommandClient(reservation(allocations=HELD, claimed={}, guests=guests))
    (columns, row), _ = run(ShowReservation, client, GUEST)
    shown = dict(zip(columns, row, strict=True))
    assert shown["allocations"].human_readable() == "web2_NUMA_0: MEMORY_MB=512,VCPU=6\nweb1: VCPU=4"
    assert shown["allocations"].machine_readable() == HELD
    who = f"{GUEST} (INSTANCE, project web)"
    assert shown["guests"].human_readable() == f"{who}: has to move\n{who}: ends before, at {START}"
    assert shown["guests"].machine_readable() == guests


def test_missing_amounts_are_shown_in_words_to_people_and_as_answered_to_programs() -> None:
    degraded = [
        {"reason": "capacity_exceeded", "provider": NODE, "resource_class": "VCPU", "missing": 4},
        {"reason": "provider_missing", "provider": GUEST, "resource_class": "MEMORY_MB", "missing": 512},
    ]
    (columns, row), _ = run(ShowReservation, CommandClient(reservation(degraded=degraded)), GUEST)
    shown = dict(zip(columns, row, strict=True))["degraded"]
    assert shown.human_readable() == (
        f"web2_NUMA_0: VCPU=4 missing, capacity exceeded\n{GUEST}: MEMORY_MB=512 missing, provider missing"
    )
    assert shown.machine_readable() == degraded


def test_a_maintenance_of_a_used_host_says_where_its_guests_are_listed() -> None:
    whose = CREATE[1:]
    times = ("--from", START, "--for", "60", "--maintenance-of", "web1")
    for degraded, told in (([{}], f"reservation show {GUEST} lists them"), ([], "")):
        client = CommandClient(reservation(uuid=GUEST, degraded=degraded))
        _, said = run(CreateReservation, client, *whose, *times)
        assert told in said
        assert bool(said) == bool(told)


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
    assert client.asked == [(method, CALENDARS, None) for method in ("POST", "GET", "DELETE")]
