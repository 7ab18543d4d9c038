"""Limits on the reservations of a project, compared with brute force over all hours."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from placement.exceptions import Conflict
from placement.store.booking_limits import BookingLimits
from placement.store.time_profile import TimedAmount, TimeWindow
from tests.placement.builders import make_provider, new_claim, post_claims, read_error
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin, application

PATH = "/ext/v1/reservations"
LIMITS_PATH = "/ext/v1/reservation_limits"
HOUR = 3600.0
LAST = 6


def limited(url: str, **options: Any) -> Admin:
    admin = Admin(application(url, reservations=options))
    make_provider(admin, "cn", VCPU=100)
    return admin


def book(admin: Admin, amount: int, begin: float, end: float, project: str = "web") -> TestResponse:
    times = {"starts_at": after(begin * HOUR), "expires_at": after(end * HOUR)}
    body = {"query": f"resources=VCPU:{amount}", "project_id": project, "user_id": "user"}
    return admin("POST", PATH, json=body | times)


def refusal(answer: TestResponse) -> str:
    status, code, detail = read_error(answer)
    assert (status, code) == (409, "placement.ext.limit_exceeded")
    return detail


def test_the_momentary_sum_of_a_project_is_limited(url: str) -> None:
    admin = limited(url, max_project_amounts={"VCPU": 8, "rich/VCPU": 16})
    assert book(admin, 5, 1, 3).status_code == 201
    detail = refusal(book(admin, 4, 2, 4))
    assert "at most 8 VCPU at once ([reservations] max_project_amounts)" in detail
    assert "it holds 5 in other reservations and in claims that end, and this reservation needs 4" in detail
    assert book(admin, 8, 3.1, 4).status_code == 201
    assert book(admin, 9, 1, 2, "other").status_code == 409
    assert book(admin, 16, 1, 2, "rich").status_code == 201


def test_a_claim_from_a_reservation_makes_no_new_room_in_the_limit(url: str) -> None:
    admin = limited(url, max_project_amounts={"VCPU": 8})
    window = book(admin, 8, 1, 3).json["reservation"]["uuid"]
    advance_clock(url, 2 * HOUR)
    claim = new_claim("resources=VCPU:8", project_id="web")
    assert post_claims(admin, claim, reservation=window, ends_at=after(0.5 * HOUR)).status_code == 201
    assert "it holds 8" in refusal(book(admin, 1, 0.1, 0.2))
    # the window gets its room back when the claim ends
    assert "it holds 8" in refusal(book(admin, 1, 0.6, 0.9))
    assert book(admin, 8, 1.1, 2).status_code == 201


def test_reservations_without_a_start_count(url: str) -> None:
    admin = limited(url, max_project_amounts={"VCPU": 8})
    body = {"query": "resources=VCPU:6", "project_id": "web", "user_id": "user", "expires_in": HOUR}
    assert admin("POST", PATH, json=body).status_code == 201
    refusal(book(admin, 3, 0.5, 2))
    refusal(admin("POST", PATH, json=body))
    assert book(admin, 3, 1.1, 2).status_code == 201


def test_the_hours_of_a_project_within_a_period_are_limited(url: str) -> None:
    admin = limited(url, max_project_hours={"VCPU": 10}, hours_period=int(4 * HOUR))
    assert book(admin, 4, 1, 3).status_code == 201
    detail = refusal(book(admin, 3, 4, 5))
    assert "at most 10 hours of one" in detail
    assert "it has 8.0 hours, and would have 11.0 with this reservation" in detail
    assert book(admin, 2, 4, 5).status_code == 201
    assert book(admin, 4, 5.1, 7).status_code == 201


def test_the_duration_and_the_horizon_are_limited_also_for_an_extension(url: str) -> None:
    admin = limited(url, max_duration=int(2 * HOUR), max_ahead=int(24 * HOUR))
    assert "at most 7200 seconds ([reservations] max_duration); this one lasts 10800" in refusal(
        book(admin, 1, 1, 4)
    )
    assert "within 86400 seconds ([reservations] max_ahead)" in refusal(book(admin, 1, 25, 26))
    made = book(admin, 1, 1, 2).json["reservation"]
    path, body = f"{PATH}/{made['uuid']}", {"generation": 1}
    refusal(admin("PUT", path, json=body | {"expires_at": after(3.5 * HOUR)}))
    assert admin("PUT", path, json=body | {"expires_at": after(2.9 * HOUR)}).status_code == 200


def test_the_number_of_reservations_of_a_project_is_limited(url: str) -> None:
    admin = limited(url, max_project_reservations=2)
    made = [book(admin, 1, begin, begin + 1) for begin in (1, 2)]
    assert [each.status_code for each in made] == [201, 201]
    detail = refusal(book(admin, 1, 3, 4))
    assert "at most 2 reservations ([reservations] max_project_reservations); it has 2" in detail
    assert book(admin, 1, 3, 4, "other").status_code == 201
    assert admin("DELETE", f"{PATH}/{made[0].json['reservation']['uuid']}").status_code == 204
    assert book(admin, 1, 3, 4).status_code == 201
    advance_clock(url, 3.5 * HOUR)
    assert book(admin, 1, 3, 4).status_code == 201


def test_an_earlier_end_is_possible_above_a_lowered_limit(url: str) -> None:
    made = book(limited(url), 8, 1, 3).json["reservation"]
    admin = Admin(application(url, reservations={"max_project_amounts": {"VCPU": 4}}))
    path, body = f"{PATH}/{made['uuid']}", {"generation": 1}
    refusal(admin("PUT", path, json=body | {"expires_at": after(3.5 * HOUR)}))
    assert admin("PUT", path, json=body | {"expires_at": after(2 * HOUR)}).status_code == 200


def amounts() -> st.SearchStrategy[list[TimedAmount]]:
    one = st.builds(
        lambda used, begin, length: TimedAmount(
            "other", "host", "VCPU", used, TimeWindow(begin * HOUR, (begin + length) * HOUR), False
        ),
        st.integers(1, 3),
        st.integers(0, LAST),
        st.integers(1, LAST),
    )
    return st.lists(one, max_size=4)


@given(
    others=amounts(),
    own=amounts(),
    most=st.integers(0, 8),
    hours=st.integers(0, 20),
    period=st.integers(1, LAST),
)
def test_a_booking_is_refused_exactly_if_an_hour_or_a_period_gets_above_its_limit(
    others: list[TimedAmount], own: list[TimedAmount], most: int, hours: int, period: int
) -> None:
    def used_in(some: list[TimedAmount]) -> list[int]:
        return [
            sum(each.used for each in some if each.window.starts_at <= hour * HOUR < each.window.ends_at)
            for hour in range(4 * LAST)
        ]

    def fullest(used: list[int]) -> int:
        return max(sum(used[begin : begin + period]) for begin in range(3 * LAST))

    before, both = used_in(others), used_in([*others, *own])
    good = not own or (
        all(new <= max(most, old) for old, new in zip(before, both, strict=True))
        and fullest(both) <= max(hours, fullest(before))
    )
    limits = BookingLimits(amounts={"VCPU": most}, hours={"VCPU": hours}, period=period * HOUR)
    if good:
        limits.check_amounts("project", others, own, 0.0)
    else:
        with pytest.raises(Conflict):
            limits.check_amounts("project", others, own, 0.0)


def test_a_project_reads_its_limits_and_what_it_uses_of_them(url: str) -> None:
    options = {"max_project_amounts": "VCPU:8,rich/VCPU:16,rich/DISK_GB:3", "max_project_hours": "VCPU:500"}
    admin = limited(url, **options, max_project_reservations=9, max_ahead=86_400)
    for begin, end in ((1, 3), (3, 4)):
        assert book(admin, 5, begin, end).status_code == 201
    member = {"X-Auth-Token": "ann:web", "X-Roles": "reader"}
    path = LIMITS_PATH
    shown = admin("GET", path, headers=member).json["limits"]
    assert shown == {
        "project_id": "web",
        "max_duration": None,
        "max_ahead": 86_400,
        "reservations": {"limit": 9, "used": 2},
        "amounts": {"VCPU": {"limit": 8, "used": 5}},
        "hours": {"VCPU": {"limit": 500, "used": 15.0}},
        "hours_period": 2_592_000,
    }
    assert admin("GET", f"{path}?project_id=web").json["limits"] == shown
    assert admin("GET", f"{path}?project_id=rich", headers=member).status_code == 403
    rich = admin("GET", f"{path}?project_id=rich").json["limits"]
    assert rich["amounts"] == {"DISK_GB": {"limit": 3, "used": 0}, "VCPU": {"limit": 16, "used": 0}}
    assert admin("GET", f"{path}?project=rich").status_code == 400


def test_without_limits_only_the_number_of_reservations_is_shown(url: str) -> None:
    admin = limited(url)
    shown = admin("GET", f"{LIMITS_PATH}?project_id=web").json["limits"]
    assert (shown["reservations"], shown["amounts"], shown["hours"]) == ({"limit": None, "used": 0}, {}, {})
