"""Tests of ``POST /ext/v1/explanations``, which explains why a request has few candidates."""

from datetime import datetime

import pytest
import sqlalchemy as sa

from placement.db import migration
from placement.search.budget import BudgetExhausted
from placement.search.claims import refusal, window_search
from tests.placement.api.ext.windows import HOUR, booked, show
from tests.placement.builders import (
    make_provider,
    new_claim,
    post_claims,
    put_allocation,
    read_error,
)
from tests.placement.moving_clock import after, iso
from tests.placement.running import Admin, application

HOST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
PATH = "/ext/v1/explanations"


@pytest.fixture(scope="module")
def admin(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('ext')}/placement.sqlite"
    migration.upgrade_schema(url)
    admin = Admin(application(url))
    make_provider(admin, "cn", provider=HOST, VCPU=8)
    return admin


def test_an_explanation_says_what_would_fit(admin):
    answer = admin("POST", PATH, json={"query": "resources=VCPU:9&limit=1"})
    assert answer.status_code == 200
    found = answer.json
    assert (found["hosts"], found["candidate_hosts"], found["incomplete"]) == (1, 0, [])
    assert found["summary"] == (
        "0 of 1 host: 1 has less than 9 VCPU free (most: 8 on cn); asking for 8 VCPU would leave 1 host"
    )
    change = {"condition": "resources", "group": "", "names": ["VCPU"], "amount": 8}
    assert found["relaxations"] == [{"changes": [change], "hosts": 1}]
    assert found["max_amounts"] == [
        {"group": "", "resource_class": "VCPU", "requested_amount": 9, "max_amount": 8}
    ]


def test_the_query_is_in_the_grammar_of_its_microversion(admin):
    query = "resources=VCPU:1&resources1=VCPU:1"
    assert admin("POST", PATH, json={"query": query, "microversion": "1.25"}).status_code == 200
    status, code, detail = read_error(admin("POST", PATH, json={"query": query, "microversion": "1.24"}))
    assert (status, code) == (400, "placement.undefined_code")
    assert "unknown name 'resources1'" in detail


@pytest.mark.parametrize("version", ["1.0", "1.10", "1.39"])
def test_the_microversion_of_the_client_does_not_matter(admin, version):
    headers = {"OpenStack-API-Version": f"placement {version}"}
    answer = admin("POST", PATH, json={"query": "resources1=VCPU:1"}, headers=headers)
    assert (answer.status_code, answer.json["microversion"]) == (200, "1.39")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "Either a 'query' or a 'flavor' is needed"),
        ({"query": ""}, "should be non-empty"),
        ({"query": "resources=VCPU:1", "flavors": {}}, "unknown name 'flavors' (did you mean flavor?)"),
        (
            {"query": "resources=VCPU:1", "microversion": "1.40"},
            "'1.40' is not a microversion from 1.10 to 1.39",
        ),
        ({"query": "resources=VCPU:1", "microversion": "1.9"}, "is not a microversion"),
        ({"query": "resources=VCPU:1&" + "a" * 8192}, "is too long"),
        ({"query": "resources=VCPU:1&x=%FF"}, "Invalid query string parameters"),
        ({"query": "&".join(["l=1"] * 1100)}, "Max number of fields exceeded"),
        ({"query": "resources=CUSTOM_NONE:1"}, "No such resource class CUSTOM_NONE"),
        ({"query": "resources=VCPU:1&required=CUSTOM_NONE"}, "No such trait(s): CUSTOM_NONE"),
        ({"query": "resources=VCPU:0"}, "amount >= 1"),
        ({"query": "resources=VCPU:18446744073709551616"}, "amount <= 2147483647"),
        ({"query": "resources1=VCPU:2147483648"}, "amount <= 2147483647"),
        (
            {"flavor": {"vcpus": 1, "ram": 1, "extra_specs": {"resources:VCPU": "99999999999999999999"}}},
            "amount <= 2147483647",
        ),
        ([], "is not of type 'object'"),
    ],
)
def test_an_invalid_query_is_refused(admin, body, said):
    status, code, detail = read_error(admin("POST", PATH, json=body))
    assert (status, code) == (400, "placement.undefined_code")
    assert said in detail


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A service with a host that has two NUMA nodes with 4 dedicated CPUs each."""
    url = f"sqlite:///{tmp_path_factory.mktemp('nodes')}/placement.sqlite"
    migration.upgrade_schema(url)
    admin = Admin(application(url, flavors={"disable_fallback_pcpu_query": False}))
    root = make_provider(admin, "host", DISK_GB=100)
    for number in range(2):
        node = make_provider(admin, f"node{number}", parent=root, PCPU=4, MEMORY_MB=8192)
        body = {"resource_provider_generation": 1, "traits": ["HW_NUMA_ROOT"]}
        assert admin("PUT", f"/resource_providers/{node}/traits", json=body).status_code == 200
    return admin


@pytest.mark.parametrize(
    ("topology", "hosts", "fitting_policy"),
    [("best-effort", 1, None), ("spread", 1, None), ("single-numa-node", 0, "best-effort")],
)
def test_an_explanation_with_a_topology_has_the_number_of_hosts_for_a_claim(
    nodes, topology, hosts, fitting_policy
):
    answer = nodes("POST", PATH, json={"query": "resources=PCPU:8", "topology": topology})
    assert answer.status_code == 200
    found = answer.json
    expected = {"lower_bound": hosts, "upper_bound": hosts, "fitting_policy": fitting_policy}
    assert found["topology"] == {"policy": topology, **expected}
    assert (found["candidate_hosts"], found["max_amounts"], found["incomplete"]) == (0, [], [])
    assert bool(found["relaxations"]) == (hosts == 0)
    assert found["summary"].startswith(
        f"topology {topology} leaves 1 of 1 host; without a topology 0 of 1 host: "
        if hosts
        else "topology single-numa-node leaves no place, best-effort would fit, asking for 4 PCPU would leave"
    )


def test_an_explanation_with_a_topology_equals_that_of_a_refused_claim(nodes):
    asked = {"query": "resources=PCPU:10,DISK_GB:1", "topology": "restricted"}
    refused = post_claims(nodes, new_claim(asked["query"], topology="restricted"))
    assert refused.status_code == 409
    (error,) = refused.json["errors"]
    # the error names windows in its text
    shifts = {"earliest_start": None, "latest_end": None}
    assert nodes("POST", PATH, json=asked).json == error["explanation"] | {"windows": [], **shifts}
    assert error["explanation"]["relaxations"][0]["changes"][0]["amount"] == 8


def test_a_flavor_is_explained_with_a_topology_and_so_is_its_fallback(nodes):
    flavor = {"vcpus": 8, "ram": 16384, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    answer = nodes("POST", PATH, json={"flavor": flavor, "topology": "restricted"})
    found = answer.json
    assert (found["topology"]["lower_bound"], found["fallback"]["topology"]["upper_bound"]) == (1, 0)


def test_an_explanation_that_ends_early_says_a_range_of_hosts(nodes, monkeypatch):
    def exhausted(*_, **__):
        raise BudgetExhausted

    monkeypatch.setattr(refusal, "choices_at_hosts", exhausted)
    found = nodes("POST", PATH, json={"query": "resources=PCPU:8", "topology": "spread"}).json
    assert (found["topology"]["lower_bound"], found["topology"]["upper_bound"]) == (0, 1)
    assert found["incomplete"] == ["topology", "relaxations"]
    assert found["summary"].startswith("topology spread leaves 0 to 1 of 1 host, further changes would take")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"query": "resources=PCPU:8", "topology": "any"}, "'any' is not one of"),
        ({"query": "resources=VCPU:8", "topology": "spread"}, "but this group requests neither"),
        (
            {"query": "resources=PCPU:8", "topology": "spread", "microversion": "1.28"},
            "microversion 1.29 or later",
        ),
    ],
)
def test_a_topology_that_splits_nothing_is_refused(nodes, body, said):
    status, _, detail = read_error(nodes("POST", PATH, json=body))
    assert status == 400
    assert said in detail


def test_an_explanation_needs_the_rights_of_a_service(admin):
    answer = admin("POST", PATH, json={"query": "resources=VCPU:1"}, headers={"X-Roles": "reader"})
    assert read_error(answer)[::2] == (
        403,
        "Policy does not allow placement:ext:explanations:explain to be performed.",
    )


def test_a_client_that_does_not_accept_json_gets_406(admin):
    headers = {"Accept": "text/html"}
    assert admin("POST", PATH, json={"query": "resources=VCPU:1"}, headers=headers).status_code == 406


def test_a_body_that_is_no_json_is_415(admin):
    assert admin("POST", PATH, data="query", content_type="text/plain").status_code == 415


@pytest.fixture
def cloud(sqlite_url):
    """A service with a host of its own in each test, with 8 VCPU and 100 GiB of disk."""
    admin = Admin(application(sqlite_url))
    make_provider(admin, "cn", provider=HOST, VCPU=8, DISK_GB=100)
    return admin


def explained(admin, query, **fields):
    """Return the explanation of a query."""
    answer = admin("POST", PATH, json={"query": query, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json


def test_an_explanation_names_the_window_that_holds_the_room(cloud):
    window = booked(cloud, 6, 1, 2)
    shown = show(cloud, window)
    found = explained(cloud, "resources=VCPU:3")
    assert found["windows"] == [
        {
            "uuid": window,
            "starts_at": shown["starts_at"],
            "ends_at": shown["expires_at"],
            "root_provider_uuids": [HOST],
            "allocations": {HOST: {"resources": {"VCPU": 6}}},
        }
    ]
    assert found["summary"] == (
        "0 of 1 host: 1 has less than 3 VCPU free (most: 2 on cn); asking for 2 VCPU would leave 1 host;"
        " windows and claims with an end time are in the way:"
        f" {window} from {shown['starts_at']} until {shown['expires_at']}"
        f"; the request fits without an end time from {shown['expires_at']} on, or now with an end time until"
        f" {shown['starts_at']}"
    )
    assert (found["earliest_start"], found["latest_end"]) == (shown["expires_at"], shown["starts_at"])
    assert cloud("DELETE", f"/ext/v1/reservations/{window}").status_code == 204
    assert explained(cloud, "resources=VCPU:3")["windows"] == []


@pytest.mark.parametrize("query", ["resources=VCPU:2", "resources=VCPU:9", "resources=DISK_GB:101"])
def test_a_window_that_is_not_the_reason_is_not_named(cloud, query):
    booked(cloud, 6, 1, 2)
    found = explained(cloud, query)
    assert (found["windows"], found["incomplete"]) == ([], [])
    assert (found["earliest_start"], found["latest_end"]) == (None, None)
    assert "in the way" not in found["summary"]


def test_only_windows_of_hosts_that_would_fit_are_named(cloud):
    other = make_provider(cloud, "full", VCPU=8)
    assert put_allocation(cloud, {other: {"VCPU": 6}}).status_code == 204
    booked(cloud, 2, 1, 2, allowed_hosts=[other])
    window = booked(cloud, 6, 1, 2, allowed_hosts=[HOST])
    found = explained(cloud, "resources=VCPU:3")
    assert [each["uuid"] for each in found["windows"]] == [window]


def test_an_explanation_names_the_first_windows_and_the_number_of_the_others(cloud):
    windows = [booked(cloud, 1, number + 1, 10 + number) for number in range(7)]
    found = explained(cloud, "resources=VCPU:2")
    assert [each["uuid"] for each in found["windows"]] == windows[:5]
    assert " and 2 more; the request fits " in found["summary"]


def test_the_times_of_an_explanation_can_be_those_of_different_hosts(cloud):
    other = make_provider(cloud, "other", VCPU=8)
    soon = booked(cloud, 8, 1, 2, allowed_hosts=[HOST])
    late = booked(cloud, 8, 3, 9, allowed_hosts=[other])
    found = explained(cloud, "resources=VCPU:1")
    times = (show(cloud, soon)["expires_at"], show(cloud, late)["starts_at"])
    assert (found["earliest_start"], found["latest_end"]) == times
    # both times are possible, and no better ones
    end = iso(datetime.fromisoformat(times[1]).timestamp() + 1)
    assert post_claims(cloud, new_claim("resources=VCPU:1"), ends_at=end).status_code == 409
    claimed = post_claims(cloud, new_claim("resources=VCPU:1"), ends_at=times[1])
    assert (claimed.status_code, claimed.json["claims"][0]["root_provider_uuid"]) == (201, other)


def test_an_explanation_has_no_times_if_their_search_takes_too_long(cloud, monkeypatch):
    def exhausted(*_, **__):
        raise BudgetExhausted

    booked(cloud, 8, 1, 2)
    monkeypatch.setattr(window_search, "find_latest_end", exhausted)
    monkeypatch.setattr(window_search, "find_each_window", exhausted)
    found = explained(cloud, "resources=VCPU:1")
    assert (len(found["windows"]), found["earliest_start"], found["latest_end"]) == (1, None, None)
    assert "the request fits" not in found["summary"]


def test_a_claim_with_an_end_is_named_only_beside_a_window_ahead(cloud):
    claimed = post_claims(cloud, new_claim("resources=VCPU:8"), ends_at=after(HOUR))
    (claim,) = claimed.json["claims"]
    assert explained(cloud, "resources=VCPU:1")["windows"] == []
    window = booked(cloud, 8, 2, 3)
    found = explained(cloud, "resources=VCPU:1")
    assert [each["uuid"] for each in found["windows"]] == [claim["consumer_uuid"], window]
    assert [each["starts_at"] is None for each in found["windows"]] == [True, False]
    assert f"{claim['consumer_uuid']} until {claim['ends_at']}, {window} from " in found["summary"]


def test_windows_are_named_for_a_query_with_a_topology(nodes):
    window = booked(nodes, 1, 1, 2, query="resources=PCPU:8", topology="best-effort")
    found = explained(nodes, "resources=PCPU:1", topology="restricted")
    assert [each["uuid"] for each in found["windows"]] == [window]
    assert sum(each["resources"]["PCPU"] for each in found["windows"][0]["allocations"].values()) == 8
    assert nodes("DELETE", f"/ext/v1/reservations/{window}").status_code == 204


def test_windows_are_named_for_a_fallback(nodes):
    window = booked(nodes, 1, 1, 2, query="resources=PCPU:8", topology="best-effort")
    flavor = {"vcpus": 4, "ram": 4096, "extra_specs": {"hw:cpu_policy": "dedicated"}}
    found = nodes("POST", PATH, json={"flavor": flavor}).json
    assert [each["uuid"] for each in found["windows"]] == [window]
    assert "windows" not in found["fallback"]
    assert nodes("DELETE", f"/ext/v1/reservations/{window}").status_code == 204


def test_without_windows_an_explanation_sends_no_further_query(cloud):
    sent = []

    def note(*args):
        sent.append(args[2])

    def count(query):
        # the first explanation reads the last changes
        explained(cloud, query)
        sent.clear()
        explained(cloud, query)
        return len(sent)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        assert count("resources=VCPU:9") == count("resources=VCPU:1")
        booked(cloud, 7, 1, 2)
        assert count("resources=VCPU:2") > count("resources=VCPU:1")
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)


def test_an_explanation_without_time_for_windows_says_so(cloud, monkeypatch):
    def exhausted(*_, **__):
        raise BudgetExhausted

    booked(cloud, 8, 1, 2)
    monkeypatch.setattr(refusal, "fitting_roots", exhausted)
    found = explained(cloud, "resources=VCPU:1")
    assert (found["windows"], found["incomplete"]) == ([], ["windows"])
