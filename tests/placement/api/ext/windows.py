"""Books windows of VCPUs for tests, with times in hours from now."""

from typing import Any, Never

from werkzeug.test import TestResponse

from placement.exceptions import Unavailable
from tests.placement.moving_clock import after
from tests.placement.running import Admin

PATH = "/ext/v1/reservations"
HOUR = 3600.0


def book(admin: Admin, amount: int, begin: float, end: float, **fields: Any) -> TestResponse:
    """Book VCPUs from some hours from now until some hours from now."""
    times = {"starts_at": after(begin * HOUR), "expires_at": after(end * HOUR)}
    body = {
        "query": f"resources=VCPU:{amount}",
        "project_id": "project",
        "user_id": "user",
        **times,
        **fields,
    }
    return admin("POST", PATH, json=body)


def booked(admin: Admin, amount: int, begin: float, end: float, **fields: Any) -> str:
    """Book VCPUs, and return the uuid of the reservation."""
    answer = book(admin, amount, begin, end, **fields)
    assert answer.status_code == 201, answer.text
    found: str = answer.json["reservation"]["uuid"]
    return found


def show(admin: Admin, reservation: str) -> dict[str, Any]:
    """Return the document of a reservation."""
    shown: dict[str, Any] = admin("GET", f"{PATH}/{reservation}").json["reservation"]
    return shown


def lose_database(*_: Any, **__: Any) -> Never:
    """Raise the error of a database that does not answer; takes the place of a function that reads it."""
    raise Unavailable("the database does not answer")
