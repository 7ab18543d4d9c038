"""The commands of `openstack` for reservations, without a service."""

import json
from datetime import datetime

import pytest
from osc_lib import exceptions

from placement_extras.openstack.reservations import RESERVATION_COLUMNS, CreateReservation
from tests.placement_extras.openstack.command_client import CommandClient, run

CREATE = ("resources=VCPU:2", "--project-id", "web", "--user-id", "ann")
START = "2026-12-24T18:00:00Z"


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


@pytest.mark.parametrize("start", ["tomorrow", "2026-12-24T18:00:00", "9999-12-31T23:59:59Z"])
def test_a_start_without_a_meaning_is_refused_before_the_request(start: str) -> None:
    client = CommandClient()
    with pytest.raises(exceptions.CommandError, match=f"--from {start} with --for 60: a time in UTC"):
        run(CreateReservation, client, *CREATE, "--from", start, "--for", "60")
    assert client.asked == []
