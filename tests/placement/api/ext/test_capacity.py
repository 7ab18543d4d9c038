"""``POST /ext/v1/capacity``."""

import pytest

from placement.api.middleware import build_application
from placement.conf import new_config
from placement.db import migration
from tests.placement.running import Admin, application

PATH = "/ext/v1/capacity"
FIRST = "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
SECOND = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
RACK = "d1ad1c8f-3cd9-4a36-9c8d-1c4a3b3f4e55"
SMALL = {"name": "small", "query": "resources=VCPU:2,DISK_GB:10"}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('ext')}/placement.sqlite"
    migration.upgrade(url)
    admin = Admin(application(url))
    for uuid, name, disk in ((FIRST, "cn1", 35), (SECOND, "cn2", 5)):
        assert admin("POST", "/resource_providers", json={"name": name, "uuid": uuid}).status_code == 200
        inventories = {"VCPU": {"total": 8}, "DISK_GB": {"total": disk}}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        assert admin("PUT", f"/resource_providers/{uuid}/inventories", json=body).status_code == 200
    body = {"resource_provider_generation": 1, "aggregates": [RACK]}
    assert admin("PUT", f"/resource_providers/{FIRST}/aggregates", json=body).status_code == 200
    return url


@pytest.fixture(scope="module")
def admin(url):
    return Admin(application(url))


def refused(answer):
    (error,) = answer.json["errors"]
    return answer.status_code, error["code"], error["detail"]


def test_it_says_how_many_fit_and_what_is_stranded_where_none_does(admin):
    answer = admin("POST", PATH, json={"flavors": [SMALL]})
    assert answer.status_code == 200
    stranded = {"stranded": {"VCPU": 8}, "stranded_guests": 4}
    assert answer.json == {
        "microversion": "1.39",
        "hosts": 2,
        "flavors": [
            {
                "name": "small",
                "fits": 3,
                "at_most": 3,
                "hosts": 2,
                "open_hosts": 1,
                "worst_host": {"host": "cn1", "host_uuid": FIRST, "fits": 0, "at_most": 0},
                "aggregates": [{"uuid": RACK, "fits": 3, "at_most": 3}],
                "short": [
                    {
                        "resource_classes": ["DISK_GB"],
                        "hosts": 1,
                        **stranded,
                        "examples": [{"host": "cn2", "host_uuid": SECOND, **stranded}],
                    }
                ],
            }
        ],
        "together": None,
    }


def test_flavors_with_proportions_are_counted_together(admin):
    flavors = [{**SMALL, "proportion": 1}, {"name": "cpus", "query": "resources=VCPU:3", "proportion": 2}]
    answer = admin("POST", PATH, json={"flavors": flavors}).json
    # two sets would take 4 CPUs of cn1 for the small ones, where then one of the others fits, and two on cn2
    assert answer["together"] == {"fits": 1, "at_most": 1, "guests": {"small": 1, "cpus": 2}}
    assert [each["fits"] for each in answer["flavors"]] == [3, 4]


def test_hosts_may_be_left_aside(admin):
    larger = {"name": "larger", "query": "resources=VCPU:1,DISK_GB:5"}
    (flavor,) = admin("POST", PATH, json={"flavors": [larger]}).json["flavors"]
    assert (flavor["fits"], flavor["open_hosts"]) == (8, 2)
    answer = admin("POST", PATH, json={"flavors": [larger, SMALL], "without": [FIRST.upper()]}).json
    assert answer["hosts"] == 1
    assert [(each["name"], each["fits"]) for each in answer["flavors"]] == [("larger", 1), ("small", 0)]


def test_queries_are_in_the_grammar_of_their_microversion(admin):
    flavor = {"name": "groups", "query": "resources=VCPU:1&resources1=VCPU:1"}
    assert admin("POST", PATH, json={"flavors": [flavor], "microversion": "1.25"}).status_code == 200
    status, _, detail = refused(admin("POST", PATH, json={"flavors": [flavor], "microversion": "1.24"}))
    assert status == 400
    assert "Flavor 'groups': " in detail
    assert "'resources1' was unexpected" in detail


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'flavors' is a required property"),
        ({"flavors": []}, "should be non-empty"),
        ({"flavors": [SMALL] * 33}, "too many"),
        ({"flavors": [SMALL, SMALL]}, "Flavor 'small' is there twice"),
        ({"flavors": [{"name": "x"}]}, "Flavor 'x': Either a 'query' or a 'flavor' is needed"),
        ({"flavors": [{**SMALL, "proportion": 0}]}, "less than the minimum of 1"),
        ({"flavors": [{**SMALL, "proportion": None}]}, "None is not of type 'integer'"),
        ({"flavors": [{**SMALL, "name": ""}]}, "should be non-empty"),
        ({"flavors": [{**SMALL, "vcpus": 1}]}, "'vcpus' was unexpected"),
        ({"flavors": [SMALL], "without": [RACK]}, f"There is no root provider {RACK}"),
        ({"flavors": [SMALL], "without": [FIRST, FIRST]}, "non-unique"),
        ({"flavors": [SMALL], "without": ["cn1"]}, "is not a 'uuid'"),
        ({"flavors": [SMALL], "microversion": "1.40"}, "does not match"),
        ({"flavors": [{"name": "x", "query": "resources=CUSTOM_NONE:1"}]}, "No such resource class"),
    ],
)
def test_what_cannot_be_counted_is_refused(admin, body, said):
    status, code, detail = refused(admin("POST", PATH, json=body))
    assert (status, code) == (400, "placement.undefined_code")
    assert said in detail


def test_what_takes_too_long_is_refused_with_the_flavor_to_blame(tmp_path):
    url = f"sqlite:///{tmp_path}/placement.sqlite"
    migration.upgrade(url)
    conf = new_config(config_files=())
    conf.set_override("connection", url, "placement_database")
    conf.set_override("auth_strategy", "noauth2", "api")
    conf.set_override("capacity_deadline", 0.05, "api")
    admin = Admin(build_application(conf))
    assert admin("POST", "/resource_providers", json={"name": "cn", "uuid": FIRST}).status_code == 200
    for number in range(12):  # there are very many ways to have twelve groups there
        child = {"name": f"numa{number}", "parent_provider_uuid": FIRST}
        uuid = admin("POST", "/resource_providers", json=child).json["uuid"]
        inventories = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 80}}}
        path = f"/resource_providers/{uuid}/inventories"
        assert admin("PUT", path, json=inventories).status_code == 200
    groups = "&".join(f"resources{number}=VCPU:{number}" for number in range(1, 13))
    many = {"name": "many", "query": f"{groups}&group_policy=none"}
    status, code, detail = refused(admin("POST", PATH, json={"flavors": [many]}))
    assert (status, code) == (400, "placement.ext.search_too_long")
    assert "flavor 'many' was being counted" in detail
    assert "[api] capacity_deadline" in detail


def test_it_takes_the_rights_of_a_service(admin):
    answer = admin("POST", PATH, json={"flavors": [SMALL]}, headers={"X-Roles": "reader"})
    assert refused(answer)[::2] == (403, "Policy does not allow placement:ext:capacity to be performed.")
