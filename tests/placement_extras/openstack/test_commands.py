"""Tests of this project's commands of `openstack` without a service: their requests, tables and error
messages.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import requests
from keystoneauth1.exceptions import http
from osc_lib import exceptions
from osc_lib.command import command

from placement.search.claims.topology import TopologyPolicy
from placement_extras.openstack.arguments import TOPOLOGIES
from placement_extras.openstack.claims import ConfirmClaim, CreateClaim, SetClaim, ShowClaim
from placement_extras.openstack.commands import ExplainAllocationCandidates, ShowCapacity
from placement_extras.openstack.reservations import (
    RESERVATION_COLUMNS,
    CreateReservation,
    ShowReservation,
)
from tests.placement_extras.openstack.command_client import FIRST, GUEST, NODE, SECOND, CommandClient, run

UNKNOWN = "0b5d0a34-6bb5-4a2f-9d6e-2f8a4c1b7e90"
OWNER = ("--project-id", "web", "--user-id", "ann")


def choice(provider: str, score: float | None) -> dict[str, Any]:
    return {
        "allocations": {provider: {"resources": {"VCPU": 2}}},
        "score": None if score is None else {"total": score, "criteria": {}},
    }


def claims(**fields: Any) -> str:
    """Return the answer to a claim of one consumer."""
    claim: Mapping[str, Any] = {
        "consumer_uuid": GUEST,
        "consumer_generation": 1,
        "expires_at": None,
        "alternates": [],
        **choice(FIRST, None),
        **fields,
    }
    return json.dumps({"claims": [claim]})


def test_a_claim_is_shown_with_its_score_its_expiry_and_its_alternates() -> None:
    end = "2026-12-24T18:00:00.000Z"
    client = CommandClient(claims(expires_at=end, alternates=[choice(SECOND, 0.25)], **choice(FIRST, 0.5)))
    asked = ("resources=VCPU:2", *OWNER, "--order", "pack=1", "--alternates", "1", "--expires-in", "60")
    (columns, rows), said = run(CreateClaim, client, *asked, "--topology", "best-effort")
    assert columns[:4] == ("#", "host", "resource_provider", "resources")
    assert columns[4:] == ("score", "consumer", "generation", "expires_at")
    assert rows == [
        (0, "web1", FIRST, "VCPU=2", 0.5, GUEST, 1, end),
        (1, "web2", SECOND, "VCPU=2", 0.25, None, None, None),
    ]
    assert said == ""
    ((_, _, body),) = client.asked
    (sent,) = body["claims"]
    assert (sent["topology"], sent["alternates"], sent["expires_in"]) == ("best-effort", 1, 60.0)


def test_a_dry_run_does_not_look_like_a_claim() -> None:
    client = CommandClient(claims())
    (_, rows), said = run(CreateClaim, client, "resources=VCPU:2", *OWNER, "--dry-run")
    assert rows == [(0, "web1", FIRST, "VCPU=2", None, None, None, None)]
    assert said == "Dry run: nothing was claimed.\n"
    ((_, _, body),) = client.asked
    assert not body["claims"][0].keys() & {"topology", "alternates", "expires_in", "group"}


@pytest.mark.parametrize(
    ("kind", "arguments", "answer"),
    [
        (CreateClaim, OWNER, json.loads(claims(warnings=["hw:x is none"]))),
        (
            CreateReservation,
            (*OWNER, "--for", "60"),
            {
                "reservation": {**dict.fromkeys(RESERVATION_COLUMNS), "allocations": {}},
                "warnings": ["hw:x is none"],
            },
        ),
        (
            ExplainAllocationCandidates,
            ("--part", "relaxations"),
            {"summary": "so", "relaxations": [], "warnings": ["hw:x is none"]},
        ),
        (
            ShowCapacity,
            ("--part", "aggregates"),
            {
                "flavors": [{"name": "guest", "aggregates": [], "warnings": ["hw:x is none"]}],
                "combined": None,
            },
        ),
    ],
)
def test_warnings_of_a_flavor_are_printed(
    kind: type[command.Command], arguments: tuple[str, ...], answer: dict[str, Any]
) -> None:
    client = CommandClient(json.dumps(answer))
    flavor = ("--vcpus", "2", "--ram", "1", "--property", "hw:x=1")
    client.answers *= 2
    _, said = run(kind, client, *arguments, *flavor)
    name = "guest: " if kind is ShowCapacity else ""
    assert f"Warning: {name}hw:x is none.\n" in said
    run(kind, client, *arguments, *flavor, "--strict")
    lenient, strict = (body["claims"][0] if kind is CreateClaim else body for _, _, body in client.asked)
    assert ("strict" in lenient, strict["strict"]) == (False, True)


def test_a_policy_without_a_group_is_refused_before_the_claim() -> None:
    client = CommandClient()
    with pytest.raises(exceptions.CommandError, match="give its name with --group"):
        run(CreateClaim, client, "resources=VCPU:2", *OWNER, "--policy", "affinity")
    assert client.asked == []


def test_the_default_policy_of_a_group_is_anti_affinity() -> None:
    client = CommandClient(claims())
    run(CreateClaim, client, "resources=VCPU:2", *OWNER, "--group", "web")
    assert client.asked[0][2]["claims"][0]["group"] == {"name": "web", "policy": "anti-affinity"}


def test_a_claim_is_confirmed_with_the_current_generation_of_its_consumer() -> None:
    held = json.dumps({"allocations": {}, "consumer_generation": 3})
    confirmed = {"consumer_uuid": GUEST, "consumer_generation": 4, "expires_at": None}
    client = CommandClient(held, json.dumps({"claim": confirmed}))
    (columns, row), _ = run(ConfirmClaim, client, GUEST)
    assert (columns, row) == (("consumer", "generation", "expires_at"), (GUEST, 4, None))
    assert client.asked[1] == ("PUT", f"/ext/v1/claims/{GUEST}", {"consumer_generation": 3})
    client = CommandClient(json.dumps({"claim": confirmed}))
    run(ConfirmClaim, client, GUEST, "--generation", "2", "--expires-in", "60")
    assert client.asked[0][2] == {"consumer_generation": 2, "expires_in": 60.0}


def test_the_end_of_a_claim_is_changed_with_the_current_generation_of_its_consumer() -> None:
    end = "2026-12-24T18:00:00.000Z"
    claim = {
        "consumer_uuid": GUEST,
        "consumer_generation": 6,
        "expires_at": end,
        "ends_at": end,
        "on_end": "evict",
    }
    client = CommandClient(json.dumps({"consumer_generation": 5}), json.dumps({"claim": claim}))
    table, _ = run(SetClaim, client, GUEST, "--ends-at", end)
    assert table == (("consumer", "generation", "ends_at", "on_end"), (GUEST, 6, end, "evict"))
    body = {"consumer_generation": 5, "ends_at": end}
    assert client.asked[1] == ("PUT", f"/ext/v1/claims/{GUEST}", body)
    with pytest.raises(exceptions.CommandError, match="give --ends-at or --on-end"):
        run(SetClaim, CommandClient(), GUEST)


def test_a_claim_is_shown_with_its_reservation_and_its_amounts() -> None:
    end = "2026-12-24T18:00:00.000Z"
    held = {NODE: {"resources": {"VCPU": 2, "MEMORY_MB": 512}}, UNKNOWN: {"resources": {"DISK_GB": 1}}}
    claim = {
        "consumer_uuid": GUEST,
        "consumer_generation": 3,
        "expires_at": end,
        "ends_at": end,
        "on_end": "evict",
        "kept_until": None,
        "reservation": SECOND,
        "allocations": held,
    }
    client = CommandClient(json.dumps({"claim": claim}))
    (columns, row), _ = run(ShowClaim, client, GUEST)
    assert client.asked == [("GET", f"/ext/v1/claims/{GUEST}", None)]
    assert dict(zip(columns[:-1], row[:-1], strict=True)) == {
        "consumer": GUEST,
        "generation": 3,
        "expires_at": end,
        "ends_at": end,
        "on_end": "evict",
        "kept_until": None,
        "reservation": SECOND,
        "hosts": ["web2"],
    }
    # names for people, the answer itself for programs
    assert row[-1].human_readable() == f"web2_NUMA_0: MEMORY_MB=512,VCPU=2\n{UNKNOWN}: DISK_GB=1"
    assert row[-1].machine_readable() == held


def test_an_endpoint_without_a_placement_service_is_named() -> None:
    with pytest.raises(exceptions.CommandError, match=r"Check that the endpoint .* is its address"):
        run(CreateClaim, CommandClient("<html>"), "resources=VCPU:2", *OWNER)


def test_two_sources_of_a_request_are_refused_by_name() -> None:
    asked = ("resources=VCPU:1", "--vcpus", "3", "--ram", "1")
    expected = "given is the query resources=VCPU:1 and a flavor with vcpus and ram"
    with pytest.raises(exceptions.CommandError, match=expected):
        run(ExplainAllocationCandidates, CommandClient(), *asked)
    with pytest.raises(exceptions.CommandError, match="given is none of them"):
        run(ExplainAllocationCandidates, CommandClient())


def test_a_missing_file_is_named_once() -> None:
    with pytest.raises(exceptions.CommandError) as refused:
        run(ExplainAllocationCandidates, CommandClient(), "--flavor-file", "nowhere.json")
    assert str(refused.value) == "nowhere.json: No such file or directory"


def test_topologies_are_those_of_the_service() -> None:
    assert set(TOPOLOGIES) == {each.value for each in TopologyPolicy}


def test_a_topology_is_explained_with_the_query() -> None:
    client = CommandClient(json.dumps({"summary": "so", "relaxations": []}))
    run(
        ExplainAllocationCandidates,
        client,
        "resources=PCPU:8",
        "--topology",
        "spread",
        "--part",
        "relaxations",
    )
    assert client.asked[0][2] == {"query": "resources=PCPU:8", "topology": "spread"}


def test_a_topology_counts_for_each_flavor() -> None:
    client = CommandClient(json.dumps({"flavors": [], "combined": None}))
    named = ("--flavor", "large=resources=PCPU:8", "--topology", "restricted")
    run(ShowCapacity, client, "resources=PCPU:2", *named)
    assert client.asked[0][2]["flavors"] == [
        {"name": "large", "query": "resources=PCPU:8", "topology": "restricted"},
        {"name": "guest", "query": "resources=PCPU:2", "topology": "restricted"},
    ]
    with pytest.raises(exceptions.CommandError, match="shortages cannot be combined with --topology"):
        run(ShowCapacity, CommandClient(), *named, "--part", "shortages")


def test_hosts_can_be_given_by_name() -> None:
    client = CommandClient(claims(**choice(NODE, None)))
    hosts = ("--allowed-host", "web1", "--allowed-host", "web2_NUMA_0", "--excluded-host", GUEST)
    (_, rows), _ = run(CreateClaim, client, "resources=VCPU:2", *OWNER, *hosts)
    assert rows[0][:3] == (0, "web2", NODE)
    (sent,) = client.asked[0][2]["claims"]
    assert (sent["allowed_hosts"], sent["excluded_hosts"]) == ([FIRST, SECOND], [GUEST])
    capacity = CommandClient(json.dumps({"flavors": [], "combined": None}))
    run(ShowCapacity, capacity, "resources=VCPU:2", "--excluded-host", "web1")
    assert capacity.asked[0][2]["excluded_hosts"] == [FIRST]
    with pytest.raises(exceptions.CommandError, match="no resource provider of the name web3"):
        run(ShowCapacity, CommandClient(), "resources=VCPU:2", "--excluded-host", "web3")


def test_a_reservation_is_shown_with_the_names_of_its_hosts() -> None:
    # claims may use all that a window has on a host
    reservation = dict.fromkeys(RESERVATION_COLUMNS) | {"allocations": {NODE: {}}, "claimed": {FIRST: {}}}
    (columns, row), _ = run(ShowReservation, CommandClient(json.dumps({"reservation": reservation})), GUEST)
    assert dict(zip(columns, row, strict=True))["hosts"] == ["web1", "web2"]


def test_several_consumers_are_reserved_with_the_same_hosts_and_shown_with_theirs() -> None:
    reservation = dict.fromkeys(RESERVATION_COLUMNS) | {"allocations": {NODE: {}, FIRST: {}}}
    chosen = [{"root_provider_uuid": each} for each in (FIRST, SECOND, SECOND)]
    client = CommandClient(json.dumps({"reservation": reservation, "claims": chosen}))
    asked = (
        "--vcpus",
        "2",
        "--ram",
        "0",
        "--count",
        "2",
        "--and-query",
        "?resources=DISK_GB:1",
        "--for",
        "60",
    )
    more = ("--different-hosts", "--topology", "spread", "--excluded-host", "web1")
    (columns, row), _ = run(CreateReservation, client, *asked, *more, *OWNER)
    assert dict(zip(columns, row, strict=True))["claims"] == ["web1", "web2", "web2"]
    ((_, _, body),) = client.asked
    place = {"topology": "spread", "excluded_hosts": [FIRST]}
    assert (body["claims"], body["different_hosts"]) == (
        [
            {"flavor": {"vcpus": 2, "ram": 0}, "count": 2, **place},
            {"query": "resources=DISK_GB:1", **place},
        ],
        True,
    )
    assert not body.keys() & {"query", "flavor", "topology", "excluded_hosts"}
    with pytest.raises(exceptions.CommandError, match="--different-hosts needs several consumers"):
        run(CreateReservation, client, "resources=VCPU:1", "--for", "60", "--different-hosts", *OWNER)


def test_a_claim_is_shown_without_names_that_the_user_may_not_see() -> None:
    class Narrow(CommandClient):
        @staticmethod
        def providers(**_: str) -> Any:
            raise exceptions.Forbidden(403, "not for you")

    (_, rows), _ = run(CreateClaim, Narrow(claims()), "resources=VCPU:2", *OWNER)
    assert rows[0][:4] == (0, "", FIRST, "VCPU=2")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {"errors": [{"title": "Service Unavailable", "detail": "No disk."}]},
            "(HTTP 503): No disk.",
        ),
        ({"errors": [{"title": "Service Unavailable"}]}, "Service Unavailable (HTTP 503)"),
    ],
)
def test_the_reason_why_a_service_is_unavailable_is_shown(body: dict[str, Any], told: str) -> None:
    class Unavailable(CommandClient):
        def request(self, method: str, path: str, **options: Any) -> Any:
            answer = requests.Response()
            answer.status_code, answer.headers["Content-Type"] = 503, "application/json"
            answer._content = json.dumps(body).encode()
            raise http.from_response(answer, method, path)

    for kind, more in ((CreateClaim, ()), (CreateReservation, ("--for=60",))):
        with pytest.raises((exceptions.CommandError, http.ServiceUnavailable)) as refused:
            run(kind, Unavailable(), "resources=VCPU:2", *OWNER, *more)
        assert str(refused.value).endswith(told)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (1, ("1 further consumer ends before.", "1 reservation there begins later, and needs another place")),
        (2, ("2 further consumers end before.", "2 reservations there begin later, and need another place")),
    ],
)
def test_a_drain_counts_in_the_singular_and_the_plural(number: int, told: tuple[str, str]) -> None:
    bounds = {"lower_bound": 0, "upper_bound": 0}
    drain = {"consumers": 0, "ending_before": number, "pending": number, "unplaced": [], **bounds}
    client = CommandClient(json.dumps({"flavors": [], "combined": None, "drain": drain}))
    _, said = run(ShowCapacity, client, "resources=VCPU:2", "--maintenance", GUEST)
    assert all(each in said for each in told)


def test_the_moves_of_a_drain_name_the_new_hosts() -> None:
    ending = "00000009-0000-4000-8000-000000000000"
    step = {"consumer_uuid": GUEST, "consumer_type": "INSTANCE", "allocations": {}}
    step |= {"source": {"host": "cn1"}, "destination": {"host": "cn2"}}
    drain = {"consumers": 1, "ending_before": 1, "ending": [ending], "steps": [step], "pending": 0}
    drain |= {"unplaced": [], "lower_bound": 1, "upper_bound": 1}
    client = CommandClient(json.dumps({"flavors": [], "combined": None, "drain": drain}))
    (_, rows), _ = run(
        ShowCapacity, client, "resources=VCPU:2", "--maintenance", "u", "--part", "drain-moves"
    )
    assert rows == [(GUEST, "INSTANCE", "cn1", "cn2"), (ending, "", "", "none: it ends before")]


def test_a_drain_without_a_flavor_says_that_it_needs_one() -> None:
    for options, told in (
        (("--maintenance", GUEST), "--maintenance and --drain need a flavor, too. Give a query"),
        ((), "no flavor is given. Give a query"),
    ):
        with pytest.raises(exceptions.CommandError, match=told):
            run(ShowCapacity, CommandClient(), *options)
