"""``POST /ext/v1/explanations``."""

import pytest

from placement.db import migration
from tests.placement.builders import make_provider, read_error
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
    assert "'resources1' was unexpected" in detail


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
        ({"query": "resources=VCPU:1", "flavors": {}}, "'flavors' was unexpected"),
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
def test_what_is_no_query_is_refused(admin, body, said):
    status, code, detail = read_error(admin("POST", PATH, json=body))
    assert (status, code) == (400, "placement.undefined_code")
    assert said in detail


def test_it_takes_the_rights_of_a_service(admin):
    answer = admin("POST", PATH, json={"query": "resources=VCPU:1"}, headers={"X-Roles": "reader"})
    assert read_error(answer)[::2] == (
        403,
        "Policy does not allow placement:ext:explanations:explain to be performed.",
    )


def test_who_takes_no_json_gets_406(admin):
    headers = {"Accept": "text/html"}
    assert admin("POST", PATH, json={"query": "resources=VCPU:1"}, headers=headers).status_code == 406


def test_a_body_that_is_no_json_is_415(admin):
    assert admin("POST", PATH, data="query", content_type="text/plain").status_code == 415
