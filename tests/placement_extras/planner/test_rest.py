"""Tests of ``POST /ext/v1/capacity``."""

from typing import Any

import pytest

from placement.db import migration
from placement.search import budget
from placement_extras.planner import handler
from tests.placement.builders import make_provider, new_claim, post_claims, read_error
from tests.placement.moving_clock import after
from tests.placement.running import Admin, application

PATH = "/ext/v1/capacity"
FIRST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
SECOND = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
RACK = "d1ad1c8f-3cd9-4a36-9c8d-1c4a3b3f4e55"
THIRD = "9b8c7d6e-5f4a-4b3c-8d2e-1f0a9b8c7d6e"
POOL = "77777777-5f4a-4b3c-8d2e-1f0a9b8c7d6e"
LARGE = "00000001-0000-4000-8000-000000000000"
MIDDLE = "00000002-0000-4000-8000-000000000000"
LITTLE = "00000003-0000-4000-8000-000000000000"
FOUR = {"name": "four", "query": "resources=VCPU:4"}
SMALL = {"name": "small", "query": "resources=VCPU:2,DISK_GB:10"}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('ext')}/placement.sqlite"
    migration.upgrade_schema(url)
    admin = Admin(application(url))
    for uuid, name, disk in ((FIRST, "cn1", 35), (SECOND, "cn2", 25)):
        make_provider(admin, name, provider=uuid, VCPU=8, DISK_GB=disk)
    body = {"resource_provider_generation": 1, "aggregates": [RACK]}
    assert admin("PUT", f"/resource_providers/{FIRST}/aggregates", json=body).status_code == 200
    claimed = post_claims(admin, new_claim("resources=DISK_GB:20", allowed_hosts=[SECOND]))
    assert claimed.status_code == 201
    return url


@pytest.fixture(scope="module")
def admin(url):
    return Admin(application(url))


def test_the_answer_has_the_guests_that_fit_and_the_stranded_amounts(admin):
    answer = admin("POST", PATH, json={"flavors": [SMALL]})
    assert answer.status_code == 200
    stranded = {"stranded": {"VCPU": 8}, "stranded_guests": 4}
    assert answer.json == {
        "microversion": "1.39",
        "hosts": 2,
        "flavors": [
            {
                "name": "small",
                "lower_bound": 3,
                "upper_bound": 3,
                "capable_hosts": 2,
                "candidate_hosts": 1,
                "fallback": None,
                "worst_host_failure": {"host": "cn1", "host_uuid": FIRST, "lower_bound": 0, "upper_bound": 0},
                "aggregates": [{"uuid": RACK, "lower_bound": 3, "upper_bound": 3}],
                "shortages": [
                    {
                        "resource_classes": ["DISK_GB"],
                        "hosts": 1,
                        **stranded,
                        "examples": [{"host": "cn2", "host_uuid": SECOND, **stranded}],
                    }
                ],
                "moves": None,
                "warnings": [],
            }
        ],
        "combined": None,
        "drain": None,
    }


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two hosts with two NUMA nodes of 8 and 4 dedicated CPUs each. The first host is in a rack."""
    url = f"sqlite:///{tmp_path_factory.mktemp('nodes')}/placement.sqlite"
    migration.upgrade_schema(url)
    admin = Admin(application(url))
    for uuid, name in ((FIRST, "cn1"), (SECOND, "cn2")):
        make_provider(admin, name, provider=uuid, DISK_GB=100)
        for number, cpus in enumerate((8, 4)):
            node = make_provider(admin, f"{name}_{number}", parent=uuid, PCPU=cpus, MEMORY_MB=8192)
            body = {"resource_provider_generation": 1, "traits": ["HW_NUMA_ROOT"]}
            assert admin("PUT", f"/resource_providers/{node}/traits", json=body).status_code == 200
    body = {"resource_provider_generation": 1, "aggregates": [RACK]}
    assert admin("PUT", f"/resource_providers/{FIRST}/aggregates", json=body).status_code == 200
    return admin


@pytest.mark.parametrize(
    ("cpus", "topology", "bounds"),
    [
        (3, "single-numa-node", (3, 3)),
        (3, "best-effort", (4, 4)),
        (6, "single-numa-node", (1, 1)),
        (6, "best-effort", (2, 2)),
        (6, "restricted", (1, 2)),
        (12, "restricted", (1, 1)),
    ],
)
def test_guests_are_counted_as_their_topology_splits_them(nodes, cpus, topology, bounds):
    flavor = {"name": "split", "query": f"resources=PCPU:{cpus},MEMORY_MB:1024", "topology": topology}
    answer = nodes("POST", PATH, json={"flavors": [flavor]})
    assert answer.status_code == 200
    (found,) = answer.json["flavors"]
    lower, upper = bounds
    assert (found["lower_bound"], found["upper_bound"]) == (2 * lower, 2 * upper)
    assert (found["capable_hosts"], found["candidate_hosts"], found["shortages"]) == (2, 2, None)
    assert found["aggregates"] == [{"uuid": RACK, "lower_bound": lower, "upper_bound": upper}]
    assert (found["worst_host_failure"]["lower_bound"], found["worst_host_failure"]["upper_bound"]) == bounds


def test_hosts_that_are_not_counted_in_time_widen_the_range(nodes, monkeypatch):
    monkeypatch.setattr(handler, "_PLACING_SHARE", 0.0)
    monkeypatch.setattr(budget, "_STEPS", 1)  # the clock is read at each step
    flavor = {"name": "split", "query": "resources=PCPU:6,MEMORY_MB:1024", "topology": "best-effort"}
    answer = nodes("POST", PATH, json={"flavors": [flavor, {**flavor, "name": "again"}]})
    assert answer.status_code == 200
    for found in answer.json["flavors"]:
        assert (found["lower_bound"], found["upper_bound"]) == (0, 4)
        (warning,) = found["warnings"]
        assert "0 of 2 hosts, because the request has only 2 seconds of CPU time ([api] capacity_d" in warning
        assert found["aggregates"] == [{"uuid": RACK, "lower_bound": 0, "upper_bound": 2}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"moves": True}, "Flavor 'split' has a 'topology', which cannot be combined with 'moves'"),
        ({"proportion": 2}, "cannot be combined with 'proportion'"),
        ({"topology": "any"}, "'any' is not one of"),
        ({"query": "resources=DISK_GB:1"}, "Flavor 'split': topology splits PCPU and MEMORY_MB"),
    ],
)
def test_questions_that_a_topology_cannot_answer_are_refused(nodes, body, said):
    flavor = {"name": "split", "query": "resources=PCPU:3", "topology": "spread"}
    flavor |= {name: each for name, each in body.items() if name != "moves"}
    asked = {"flavors": [flavor], "moves": body.get("moves", False)}
    status, _, detail = read_error(nodes("POST", PATH, json=asked))
    assert status == 400
    assert said in detail


def test_flavors_with_proportions_are_counted_together(admin):
    flavors = [{**SMALL, "proportion": 1}, {"name": "cpus", "query": "resources=VCPU:3", "proportion": 2}]
    answer = admin("POST", PATH, json={"flavors": flavors}).json
    # two sets would take 4 CPUs of cn1 for the small ones, where then one of the others fits, and two on cn2
    assert answer["combined"] == {"lower_bound": 1, "upper_bound": 1, "guests": {"small": 1, "cpus": 2}}
    assert [each["lower_bound"] for each in answer["flavors"]] == [3, 4]


def test_hosts_may_be_left_aside(admin):
    larger = {"name": "larger", "query": "resources=VCPU:1,DISK_GB:5"}
    (flavor,) = admin("POST", PATH, json={"flavors": [larger]}).json["flavors"]
    assert (flavor["lower_bound"], flavor["candidate_hosts"]) == (8, 2)
    answer = admin("POST", PATH, json={"flavors": [larger, SMALL], "excluded_hosts": [FIRST.upper()]}).json
    assert answer["hosts"] == 1
    assert [(each["name"], each["lower_bound"]) for each in answer["flavors"]] == [
        ("larger", 1),
        ("small", 0),
    ]


def test_queries_are_in_the_grammar_of_their_microversion(admin):
    flavor = {"name": "groups", "query": "resources=VCPU:1&resources1=VCPU:1"}
    assert admin("POST", PATH, json={"flavors": [flavor], "microversion": "1.25"}).status_code == 200
    status, _, detail = read_error(admin("POST", PATH, json={"flavors": [flavor], "microversion": "1.24"}))
    assert status == 400
    assert "Flavor 'groups': " in detail
    assert "unknown name 'resources1'" in detail


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'flavors' is a required property"),
        ({"flavors": []}, "should be non-empty"),
        ({"flavors": [SMALL] * 33}, "too many"),
        ({"flavors": [SMALL, SMALL]}, "Two flavors have the name 'small'"),
        ({"flavors": [{"name": "x"}]}, "Flavor 'x': Either a 'query' or a 'flavor' is needed"),
        ({"flavors": [{**SMALL, "proportion": 0}]}, "less than the minimum of 1"),
        ({"flavors": [{**SMALL, "proportion": None}]}, "None is not of type 'integer'"),
        ({"flavors": [{**SMALL, "name": ""}]}, "should be non-empty"),
        ({"flavors": [{**SMALL, "vcpus": 1}]}, "unknown name 'vcpus'"),
        ({"flavors": [SMALL], "excluded_hosts": [RACK]}, f"There is no root provider {RACK}"),
        ({"flavors": [SMALL], "excluded_hosts": [FIRST, FIRST]}, "non-unique"),
        (
            {"flavors": [SMALL], "drain": True},
            "'drain' needs hosts in 'excluded_hosts', but this list is empty",
        ),
        ({"flavors": [SMALL], "excluded_hosts": ["cn1"]}, "is not the UUID of a root provider"),
        ({"flavors": [SMALL], "microversion": "1.40"}, "'1.40' is not a microversion from 1.10 to 1.39"),
        ({"flavors": [{"name": "x", "query": "resources=CUSTOM_NONE:1"}]}, "No such resource class"),
    ],
)
def test_wrong_bodies_are_refused(admin, body, said):
    status, code, detail = read_error(admin("POST", PATH, json=body))
    assert (status, code) == (400, "placement.undefined_code")
    assert said in detail


@pytest.fixture
def crowded(database_server, database_template):
    """Three hosts with 4, 4 and 2 CPUs. The first has a guest with 3 CPUs, the second guests with 2 and 1
    CPUs, and the last no guest.
    """
    url = database_server.clone(database_template)
    admin = Admin(application(url))
    for uuid, name, cpus in ((FIRST, "cn1", 4), (SECOND, "cn2", 4), (THIRD, "cn3", 2)):
        admin("POST", "/resource_providers", json={"name": name, "uuid": uuid})
        body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": cpus}}}
        assert admin("PUT", f"/resource_providers/{uuid}/inventories", json=body).status_code == 200
    for consumer, host, cpus in ((LARGE, FIRST, 3), (MIDDLE, SECOND, 2), (LITTLE, SECOND, 1)):
        body = {
            "allocations": {host: {"resources": {"VCPU": cpus}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "INSTANCE",
            "consumer_generation": None,
        }
        assert admin("PUT", f"/allocations/{consumer}", json=body).status_code == 204
    yield admin
    database_server.drop_database(url)


def test_guests_of_drained_hosts_without_a_place_are_named(crowded):
    asked = {"flavors": [SMALL], "drain": True}
    answer = crowded("POST", PATH, json={**asked, "excluded_hosts": [SECOND]}).json["drain"]
    assert answer == {
        "consumers": 2,
        "ending_before": 0,
        "ending": [],
        "pending": 0,
        "lower_bound": 2,
        "upper_bound": 2,
        "unplaced": [],
        "steps": [move_of(MIDDLE, "cn3", THIRD, 2), move_of(LITTLE, "cn1", FIRST, 1)],
    }
    answer = crowded("POST", PATH, json={**asked, "excluded_hosts": [FIRST, SECOND]}).json["drain"]
    assert (answer["consumers"], answer["lower_bound"], answer["upper_bound"]) == (3, 1, 1)
    large, middle = answer["unplaced"]
    assert large == {
        "consumer_uuid": LARGE,
        "consumer_type": "INSTANCE",
        "host": "cn1",
        "host_uuid": FIRST,
        "resources": {"VCPU": 3},
        "placeable_alone": False,
    }
    assert middle["placeable_alone"]


def move_of(consumer: str, host: str, uuid: str, cpus: int) -> dict[str, Any]:
    return {
        "consumer_uuid": consumer,
        "consumer_type": "INSTANCE",
        "source": {"host": "cn2", "host_uuid": SECOND},
        "destination": {"host": host, "host_uuid": uuid},
        "allocations": {uuid: {"resources": {"VCPU": cpus}}},
    }


def test_only_guests_that_last_into_a_maintenance_have_to_move(crowded):
    short = new_claim("resources=VCPU:1", allowed_hosts=[SECOND])
    assert post_claims(crowded, short, ends_at=after(1800)).status_code == 201
    # a window that has not begun holds nothing, so it is only counted
    owner = {"project_id": "ops", "user_id": "eve"}
    planned = {"query": "resources=VCPU:1", "starts_at": after(3000), "expires_at": after(5000), **owner}
    answer = crowded("POST", "/ext/v1/reservations", json={**planned, "allowed_hosts": [SECOND]})
    assert answer.status_code == 201
    window = answer.json["reservation"]
    times = {"starts_at": after(3600), "expires_at": after(7200)}
    body = {"maintenance_of": SECOND, **owner, **times}
    maintenance = crowded("POST", "/ext/v1/reservations", json=body).json["reservation"]["uuid"]
    # the hold that keeps the host free is no guest
    body = {"flavors": [SMALL], "drain": True, "excluded_hosts": [SECOND]}
    assert crowded("POST", PATH, json=body).json["drain"]["consumers"] == 3
    body = {"flavors": [SMALL], "maintenance": maintenance}
    answer = crowded("POST", PATH, json=body).json
    assert (answer["hosts"], answer["drain"]["consumers"], answer["drain"]["ending_before"]) == (2, 2, 1)
    assert (answer["drain"]["lower_bound"], answer["drain"]["unplaced"]) == (2, [])
    assert answer["drain"]["pending"] == 1
    assert answer["drain"]["ending"] == [short["consumer_uuid"]]
    # the moves can be made: afterwards no guest has to move
    for step in answer["drain"]["steps"]:
        held = crowded("GET", f"/allocations/{step['consumer_uuid']}").json
        moved = {**held, "allocations": step["allocations"]}
        assert crowded("PUT", f"/allocations/{step['consumer_uuid']}", json=moved).status_code == 204
    shown = crowded("GET", f"/ext/v1/reservations/{maintenance}").json["reservation"]
    left = [each["consumer_uuid"] for each in shown["guests"] if each["has_to_move"]]
    assert left == [window["uuid"]]
    body["maintenance"] = LARGE
    assert crowded("POST", PATH, json=body).status_code == 404


def test_a_maintenance_of_another_project_is_not_found(sqlite_url, tmp_path):
    host = make_provider(Admin(application(sqlite_url)), "cn", VCPU=4)
    body = {"maintenance_of": host, "project_id": "ops", "user_id": "eve"}
    body |= {"starts_at": after(3600), "expires_at": after(7200)}
    shown = Admin(application(sqlite_url))("POST", "/ext/v1/reservations", json=body).json["reservation"]
    (tmp_path / "policy.yaml").write_text('"placement:ext:capacity:count": "role:reader"\n')
    policies = {"policy_file": str(tmp_path / "policy.yaml")}
    admin = Admin(application(sqlite_url, oslo_policy=policies))
    statuses = []
    for project in ("ops", "other"):
        headers = {"X-Auth-Token": f"ann:{project}", "X-Roles": "reader", "X-Project-Id": project}
        body = {"flavors": [SMALL], "maintenance": shown["uuid"]}
        statuses.append(admin("POST", PATH, json=body, headers=headers).status_code)
    assert statuses == [200, 404]


def test_the_fewest_moves_that_make_room_are_named(crowded):
    flavors = [
        {"name": "two", "query": "resources=VCPU:2"},
        {"name": "three", "query": "resources=VCPU:3"},
        {"name": "four", "query": "resources=VCPU:4"},
        {"name": "five", "query": "resources=VCPU:5"},
    ]
    answer = crowded("POST", PATH, json={"flavors": flavors, "moves": True}).json
    two, three, four, five = (each["moves"] for each in answer["flavors"])
    assert two == {"lower_bound": 0, "host": "cn3", "host_uuid": THIRD, "steps": []}
    assert three == {
        "lower_bound": 1,
        "host": "cn2",
        "host_uuid": SECOND,
        "steps": [
            {
                "consumer_uuid": MIDDLE,
                "consumer_type": "INSTANCE",
                "source": {"host": "cn2", "host_uuid": SECOND},
                "destination": {"host": "cn3", "host_uuid": THIRD},
                "allocations": {THIRD: {"resources": {"VCPU": 2}}},
            }
        ],
    }
    assert four["lower_bound"] == len(four["steps"]) == 2
    assert five == {"lower_bound": None, "host": None, "host_uuid": None, "steps": None}


def test_a_host_in_maintenance_takes_neither_displaced_nor_moved_guests(crowded):
    body = {"resource_provider_generation": 1, "traits": ["COMPUTE_STATUS_DISABLED"]}
    assert crowded("PUT", f"/resource_providers/{THIRD}/traits", json=body).status_code == 200
    asked = [
        {"name": each, "query": f"resources=VCPU:{cpus}&root_required=!COMPUTE_STATUS_DISABLED"}
        for each, cpus in (("two", 2), ("three", 3))
    ]
    body = {"flavors": asked, "drain": True, "excluded_hosts": [SECOND]}
    answer = crowded("POST", PATH, json=body).json["drain"]
    assert (answer["consumers"], answer["lower_bound"], answer["upper_bound"]) == (2, 1, 1)
    assert [each["consumer_uuid"] for each in answer["unplaced"]] == [MIDDLE]
    assert not answer["unplaced"][0]["placeable_alone"]
    answer = crowded("POST", PATH, json={"flavors": asked, "moves": True}).json
    two, three = (each["moves"] for each in answer["flavors"])
    (move,) = two["steps"]
    assert (move["consumer_uuid"], move["destination"]["host"], two["host"]) == (LITTLE, "cn1", "cn2")
    assert (three["steps"], three["lower_bound"]) == (None, None)


def test_hosts_are_short_of_what_a_full_pool_had_for_them(crowded):
    assert crowded("POST", "/resource_providers", json={"name": "pool", "uuid": POOL}).status_code == 200
    body = {"resource_provider_generation": 0, "inventories": {"DISK_GB": {"total": 20}}}
    assert crowded("PUT", f"/resource_providers/{POOL}/inventories", json=body).status_code == 200
    body = {"resource_provider_generation": 1, "traits": ["MISC_SHARES_VIA_AGGREGATE"]}
    assert crowded("PUT", f"/resource_providers/{POOL}/traits", json=body).status_code == 200
    for uuid, generation in ((POOL, 2), (FIRST, 2), (SECOND, 3)):
        body = {"resource_provider_generation": generation, "aggregates": [RACK]}
        assert crowded("PUT", f"/resource_providers/{uuid}/aggregates", json=body).status_code == 200
    assert post_claims(crowded, new_claim("resources=DISK_GB:20", allowed_hosts=[POOL])).status_code == 201
    (flavor,) = crowded("POST", PATH, json={"flavors": [SMALL]}).json["flavors"]
    assert (flavor["lower_bound"], flavor["capable_hosts"], flavor["candidate_hosts"]) == (0, 2, 0)
    assert {tuple(each["resource_classes"]): each["hosts"] for each in flavor["shortages"]} == {
        ("DISK_GB", "VCPU"): 2,
    }


def test_hosts_with_too_many_allocations_to_read_are_refused(crowded, monkeypatch):
    monkeypatch.setattr(handler, "MAX_HELD", 1)
    body = {"flavors": [SMALL], "drain": True, "excluded_hosts": [SECOND]}
    assert "hold more than 1 allocations: name fewer hosts" in read_error(crowded("POST", PATH, json=body))[2]
    # moves are looked for among those that are known
    (flavor,) = crowded("POST", PATH, json={"flavors": [FOUR], "moves": True}).json["flavors"]
    assert flavor["moves"]["lower_bound"] == 1


def test_a_count_that_takes_too_long_is_refused_with_its_flavor(sqlite_url):
    admin = Admin(application(sqlite_url, api={"capacity_deadline": 0.05}))
    make_provider(admin, "cn", provider=FIRST)
    for number in range(12):  # there are very many ways to have twelve groups there
        child = {"name": f"numa{number}", "parent_provider_uuid": FIRST}
        uuid = admin("POST", "/resource_providers", json=child).json["uuid"]
        inventories = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 80}}}
        path = f"/resource_providers/{uuid}/inventories"
        assert admin("PUT", path, json=inventories).status_code == 200
    groups = "&".join(f"resources{number}=VCPU:{number}" for number in range(1, 13))
    many = {"name": "many", "query": f"{groups}&group_policy=none"}
    status, code, detail = read_error(admin("POST", PATH, json={"flavors": [many]}))
    assert (status, code) == (400, "placement.ext.search_too_long")
    assert "the limit was reached at flavor 'many'" in detail
    assert "[api] capacity_deadline" in detail


def test_the_operation_requires_the_role_of_a_service(admin):
    answer = admin("POST", PATH, json={"flavors": [SMALL]}, headers={"X-Roles": "reader"})
    assert read_error(answer)[::2] == (
        403,
        "Policy does not allow placement:ext:capacity:count to be performed.",
    )
