"""One reservation for several claims: all or none, on different hosts, changed and claimed from together."""

import random
import re
import time
from itertools import product
from typing import Any

import pytest
from werkzeug.test import TestResponse

from tests.placement.api.ext.windows import HOUR, PATH, booked, show
from tests.placement.builders import make_provider, new_claim, post_claims, read_error, read_usages
from tests.placement.moving_clock import advance_clock, after, iso
from tests.placement.running import Admin, application
from tests.placement.workers.window_tables import find_broken_promises


@pytest.fixture
def hosts(admin: Admin) -> list[str]:
    return [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]


def asked(amount: int, **fields: Any) -> dict[str, Any]:
    return {"query": f"resources=VCPU:{amount}", **fields}


def book_several(
    admin: Admin, several: list[dict[str, Any]], begin: float = 1, end: float = 2, **fields: Any
) -> TestResponse:
    """Book claims together from some hours from now until some hours from now."""
    times = {"starts_at": after(begin * HOUR), "expires_at": after(end * HOUR)}
    body = {"claims": several, "project_id": "project", "user_id": "user", **times, **fields}
    return admin("POST", PATH, json={name: value for name, value in body.items() if value is not None})


def amounts_of(reservation: dict[str, Any]) -> list[int]:
    return sorted(each["resources"]["VCPU"] for each in reservation["allocations"].values())


def test_claims_of_a_window_are_booked_together_on_different_hosts(
    admin: Admin, url: str, hosts: list[str]
) -> None:
    answer = book_several(admin, [asked(4, count=2), asked(6)], different_hosts=True)
    assert answer.status_code == 201, answer.text
    made = answer.json["reservation"]
    assert (amounts_of(made), made["movable"], made["generation"]) == ([4, 4, 6], False, 1)
    assert [next(iter(each["allocations"].values()))["resources"] for each in answer.json["claims"]] == [
        {"VCPU": 4},
        {"VCPU": 4},
        {"VCPU": 6},
    ]
    assert len({each["root_provider_uuid"] for each in answer.json["claims"]}) == 3
    assert all(
        set(each) == {"root_provider_uuid", "allocations", "mappings"} for each in answer.json["claims"]
    )
    assert show(admin, made["uuid"]) == made
    body = {"generation": 1, "expires_at": after(3 * HOUR)}
    changed = admin("PUT", f"{PATH}/{made['uuid']}", json=body).json["reservation"]
    kept = dict(list(changed["allocations"].items())[:2])
    body = {"generation": 2, "allocations": kept}
    changed = admin("PUT", f"{PATH}/{made['uuid']}", json=body).json["reservation"]
    assert changed["allocations"] == kept
    assert find_broken_promises(url) == []
    assert admin("DELETE", f"{PATH}/{made['uuid']}").status_code == 204
    assert [read_usages(admin, each)["VCPU"] for each in hosts] == [0, 0, 0]


def test_a_refused_claim_is_named_and_nothing_is_booked(admin: Admin, hosts: list[str]) -> None:
    window = booked(admin, 6, 1.5, 3, allowed_hosts=[hosts[0]])
    answer = book_several(admin, [asked(1), asked(8, count=3)], different_hosts=False)
    status, code, detail = read_error(answer)
    assert (status, code) == (409, "placement.ext.no_candidate")
    assert re.search(
        "no candidate for claim 2 of the reservation in addition to [23] that fit, of 4 with counts: ",
        detail,
    )
    assert f"{window} from " in detail
    listed = admin("GET", PATH).json["reservations"]
    assert [each["uuid"] for each in listed] == [window]
    # three hosts suffice for three claims
    answer = book_several(admin, [asked(1, count=4)], different_hosts=True)
    assert "no host may be chosen: 3 hosts are excluded by different_hosts." in read_error(answer)[2]
    # hosts of their own are no group, so a real group of any name does not matter
    member = new_claim("resources=VCPU:1", group={"name": "different-hosts", "policy": "anti-affinity"})
    assert post_claims(admin, member, ends_at=after(HOUR)).status_code == 201
    assert book_several(admin, [asked(1, count=3)], different_hosts=True).status_code == 201


def test_claims_without_a_start_are_held_at_once(admin: Admin, hosts: list[str]) -> None:
    times = {"starts_at": None, "expires_at": None, "expires_in": 600}
    for different_hosts, amounts in ((True, [4, 4]), (False, [4, 4])):
        answer = book_several(admin, [asked(4, count=2)], different_hosts=different_hosts, **times)
        assert answer.status_code == 201, answer.text
        made = answer.json["reservation"]
        assert (made["state"], sum(amounts_of(made))) == ("active", sum(amounts))
        assert (len(made["allocations"]) == 2) or not different_hosts
    assert sum(read_usages(admin, each)["VCPU"] for each in hosts) == 16
    status, _, detail = read_error(book_several(admin, [asked(4, count=3)], different_hosts=True, **times))
    assert status == 409
    assert "claim 1 of the reservation" in detail


def test_claims_on_one_host_may_exceed_its_largest_portion_together(admin: Admin, url: str) -> None:
    make_provider(admin, "cn", VCPU={"total": 8, "max_unit": 4, "step_size": 2})
    made = book_several(admin, [asked(4), asked(2)])
    assert made.status_code == 201, made.text
    assert amounts_of(made.json["reservation"]) == [6]
    uuid = made.json["reservation"]["uuid"]
    advance_clock(url, 1.25 * HOUR)
    taking = [new_claim(f"resources=VCPU:{amount}") for amount in (2, 4)]
    assert post_claims(admin, *taking, reservation=uuid, ends_at=after(60)).status_code == 201
    assert show(admin, uuid)["allocations"] == {}


def test_claims_are_placed_within_the_amounts_of_each_host(admin: Admin, url: str, hosts: list[str]) -> None:
    made = book_several(admin, [asked(6), asked(4), asked(2)], 1, 4, different_hosts=True).json["reservation"]
    advance_clock(url, 2 * HOUR)
    ends_at = after(HOUR)

    def take(*amounts: int, **fields: Any) -> tuple[int, list[str]]:
        claims = [new_claim(f"resources=VCPU:{amount}", **fields) for amount in amounts]
        answer = post_claims(admin, *claims, reservation=made["uuid"], ends_at=ends_at)
        if answer.status_code != 201:
            return answer.status_code, []
        return 201, [each["root_provider_uuid"] for each in answer.json["claims"]]

    apart = {"group": {"name": "apart", "policy": "anti-affinity"}}
    assert take(7) == (409, [])
    assert take(4, 4, 4) == (409, [])
    # only the first host has 6 or 5 VCPU, and it is one host
    assert take(6, 5, **apart) == (409, [])
    status, (large, middle, small) = take(5, 4, 2, **apart)
    assert (status, len({large, middle, small})) == (201, 3)
    left = show(admin, made["uuid"])
    assert left["allocations"] == {large: {"resources": {"VCPU": 1}}}
    assert take(1) == (201, [large])
    used = show(admin, made["uuid"])
    assert (used["allocations"], amounts_of({"allocations": used["claimed"]})) == ({}, [2, 4, 6])
    assert find_broken_promises(url) == []


def test_limits_count_all_amounts_of_several_claims(url: str) -> None:
    admin = Admin(application(url, reservations={"max_project_amounts": "VCPU:7"}))
    for number in range(2):
        make_provider(admin, f"cn{number}", VCPU=8)
    status, code, detail = read_error(book_several(admin, [asked(4, count=2)], different_hosts=True))
    assert (status, code) == (409, "placement.ext.limit_exceeded")
    assert "8" in detail
    assert book_several(admin, [asked(4), asked(3)], different_hosts=True).status_code == 201


def test_preemptible_claims_end_for_several_claims(admin: Admin, url: str, hosts: list[str]) -> None:
    lent = [new_claim("resources=VCPU:8", allowed_hosts=[each]) for each in hosts]
    for each in lent:
        assert post_claims(admin, each, preemptible={"min_duration": int(HOUR)}).status_code == 201
    start = after(3 * HOUR)
    assert book_several(admin, [asked(8, count=2)], 3, 4, starts_at=start).status_code == 201
    ends = [admin("GET", f"/ext/v1/claims/{each['consumer_uuid']}").json["claim"]["ends_at"] for each in lent]
    assert ends.count(start) == 2
    assert find_broken_promises(url) == []


def test_a_window_of_several_claims_does_not_move_and_other_windows_do_not_move_for_it(
    admin: Admin, hosts: list[str]
) -> None:
    made = book_several(admin, [asked(2, count=3)], different_hosts=True).json["reservation"]
    # with a move of one of its parts, a host would be free
    assert read_error(book_several(admin, [asked(8)]))[0] == 409
    assert show(admin, made["uuid"])["allocations"] == made["allocations"]
    one = book_several(admin, [asked(4)])
    assert one.json["reservation"]["movable"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"claims": [asked(1)], "query": "resources=VCPU:1"}, "query is a field of each claim"),
        ({"claims": [asked(1)], "allowed_hosts": ["cf48e3ac-5a1b-4c5c-9d3b-000000000001"]}, "of each claim"),
        ({"claims": [asked(1)], "order": {"pack": 1}}, "With claims, order is not possible"),
        ({"claims": [asked(1, count=40), asked(1, count=25)]}, "At most 64 claims"),
        (
            {"claims": None, "query": "resources=VCPU:1", "different_hosts": True},
            "different_hosts needs claims",
        ),
        (
            {"claims": [asked(1)], "maintenance_of": "cf48e3ac-5a1b-4c5c-9d3b-000000000001"},
            "a whole host, without claims",
        ),
    ],
)
def test_wrong_bookings_are_refused(
    admin: Admin, hosts: list[str], fields: dict[str, Any], message: str
) -> None:
    status, _, detail = read_error(book_several(admin, [], **fields))
    assert status == 400
    assert message in detail


@pytest.mark.parametrize("seed", range(4))
def test_found_windows_of_several_claims_are_booked_and_all_others_refused(url: str, seed: int) -> None:
    rng = random.Random(seed)
    admin = Admin(application(url))
    hosts = [make_provider(admin, f"cn{number}", VCPU=8) for number in range(3)]
    start = time.time()

    def times(begin: float, end: float) -> dict[str, str]:
        return {"starts_at": iso(start + begin * HOUR), "expires_at": iso(start + end * HOUR)}

    # windows in whole hours: host, amount, begin and end
    windows = []
    for _ in range(8):
        host, amount, begin = rng.randrange(3), rng.randint(1, 8), rng.randint(1, 8)
        end = begin + rng.randint(1, 4)
        if most_used(windows, host, begin, end) + amount <= 8:
            windows.append((host, amount, begin, end))
            booked(admin, amount, 0, 0, **times(begin, end), allowed_hosts=[hosts[host]])
    for _ in range(6):
        amounts = [rng.randint(1, 8) for _ in range(rng.randint(2, 3))]
        begin, are_apart = rng.randint(1, 9), rng.random() < 0.5
        several = [asked(each) for each in amounts]
        answer = book_several(admin, several, different_hosts=are_apart, **times(begin, begin + 1))
        free = [8 - most_used(windows, host, begin, begin + 1) for host in range(3)]
        assert answer.status_code == (201 if fit_together(amounts, free, are_apart) else 409), answer.text
        if answer.status_code == 201:
            for amount, each in zip(amounts, answer.json["claims"], strict=True):
                windows.append((hosts.index(each["root_provider_uuid"]), amount, begin, begin + 1))
        body = {"claims": several, "different_hosts": are_apart, "duration": 1800}
        (first, *_) = admin("POST", "/ext/v1/availability", json=body).json["windows"]
        found = {"starts_at": first["starts_at"], "expires_at": first["ends_at"]}
        trial = book_several(admin, several, different_hosts=are_apart, **found)
        assert trial.status_code == 201, trial.text
        assert admin("DELETE", f"{PATH}/{trial.json['reservation']['uuid']}").status_code == 204
    assert find_broken_promises(url) == []


def most_used(windows: list[tuple[int, int, int, int]], host: int, begin: int, end: int) -> int:
    """Return the largest amount in use on a host in some hour."""
    return max(
        sum(amount for at, amount, first, last in windows if at == host and first <= hour < last)
        for hour in range(begin, end)
    )


def fit_together(amounts: list[int], free: list[int], are_apart: bool) -> bool:
    """Return whether some distribution of amounts to hosts leaves no host overfull."""
    return any(
        all(
            sum(a for a, at in zip(amounts, chosen, strict=True) if at == host) <= free[host]
            for host in range(3)
        )
        for chosen in product(range(3), repeat=len(amounts))
        if not are_apart or len(set(chosen)) == len(chosen)
    )
