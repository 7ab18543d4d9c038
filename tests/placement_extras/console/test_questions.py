"""Tests of pages with a form: candidates, capacity, names, consumers and projects, and of changes by
visitors.
"""

import re
import shutil
from http import HTTPStatus
from typing import Any

import pytest
from werkzeug.test import Client

from placement.exceptions import InvalidRequest
from placement_extras.console import questions
from placement_extras.console.page_request import PLAIN_COOKIE
from tests.placement.api.ext.windows import HOUR, booked, show
from tests.placement.builders import make_provider, new_claim, post_claims, put_inventories
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin, application
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import read_answer

READER = {"X-Auth-Token": f"somebody:{world.PROJECT}", "X-Roles": "reader,member"}
EDGE = world.uuid_of("edge-1")


def test_candidates_of_a_query_are_drawn_by_host(client):
    text = read_answer(
        client, "candidates", query="resources=VCPU:2,MEMORY_MB:1024\nroot_required=CUSTOM_GOLD"
    )
    assert "on 1 host" in text
    assert "compute-3 …_NUMA0 2 VCPU of 64 free 1 GiB MEMORY_MB of 127 GiB free" in text
    assert "compute-1" not in text


def test_a_whole_address_will_do_as_a_query(client):
    address = "http://placement/allocation_candidates?resources=VCPU:2&root_required=CUSTOM_GOLD"
    assert "on 1 host" in read_answer(client, "candidates", query=address)


def test_candidates_of_a_flavor_are_those_that_nova_asks_for(client):
    text = read_answer(
        client, "candidates", vcpus="4", ram="4096", disk="10", specs="hw:cpu_policy=dedicated"
    )
    assert "4 PCPU of 16 free" in text
    assert "compute-9" not in text  # which is disabled
    assert "Rechenzentrum" in text


def test_why_there_is_no_candidate_is_said_and_shown(client):
    text = read_answer(client, "candidates", query="resources=PCPU:30")
    assert "There is no candidate" in text
    assert "asking for 24 PCPU would leave" in text
    assert "For 30 PCPU" in text
    assert "Hosts that Left of 8 have PCPU 6 have 30 PCPU free 0" in text
    assert "6 hosts do not have 30 PCPU free" in text


def test_windows_in_the_way_of_a_guest_are_shown(app, client):
    assert "Windows in the way" not in read_answer(client, "candidates", query="resources=PCPU:30")
    admin = Admin(app)
    window = booked(admin, 0, 1, 2, query="resources=MEMORY_MB:262144", allowed_hosts=[EDGE])
    query = f"resources=MEMORY_MB:1024&in_tree={EDGE}"
    try:
        (shown,) = admin("POST", "/ext/v1/explanations", json={"query": query}).json["windows"]
        text = read_answer(client, "candidates", query=query)
    finally:
        assert admin("DELETE", f"/ext/v1/reservations/{window}").status_code == 204
    assert f"Windows in the way {window} from {shown['starts_at']} until {shown['ends_at']} on {EDGE}" in text


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"query": "resources=NOTHING:1"}, "No such resource class NOTHING"),
        ({"query": "resources=VCPU:x"}, "VCPU"),
        ({"query": "nonsense"}, "nonsense"),
        ({"query": "resources=VCPU:1&required=CUSTOM_NOBODY"}, "No such trait"),
        ({"vcpus": "four"}, "is a whole number, not 'four'"),
        ({"vcpus": "9" * 400}, "is a whole number"),
        ({"vcpus": "1", "specs": "hw:cpu_policy"}, "An extra spec has the form NAME=VALUE"),
        ({"vcpus": "1", "ram": "1", "specs": "hw:cpu_policy=odd"}, "odd"),
    ],
)
def test_errors_of_a_question_are_shown_above_the_answer(client, parameters, said):
    text = read_answer(client, "candidates", HTTPStatus.BAD_REQUEST, **parameters)
    assert said in text
    assert "Find candidates" in text


def test_capacity_is_counted_with_and_without_hosts(client):
    flavors = "small=resources=PCPU:4,MEMORY_MB:8192\nlarge=resources=VCPU:64,MEMORY_MB:65536"
    text = read_answer(client, "capacity", flavors=flavors)
    assert "small" in text
    before = int(re.search(r"small (\d+) fit", text)[1])
    text = read_answer(
        client, "capacity", flavors=flavors, excluded_hosts="compute-1", drain="on", moves="on"
    )
    assert int(re.search(r"small (\d+) fit", text)[1]) < before
    assert "2 of 2 consumers fit on the other hosts" in text
    assert "No move is needed" in text
    assert "PCPU 1 238 GiB MEMORY_MB" in text


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"flavors": "small"}, "A flavor is NAME=QUERY or NAME: vcpus=4 ram=4096 SPEC=VALUE, not 'small'"),
        ({"flavors": "small=resources=NOTHING:1"}, "NOTHING"),
        ({"flavors": "small=resources=VCPU:1", "excluded_hosts": "nobody"}, "There is no host 'nobody'"),
        ({"flavors": "a=resources=VCPU:1\na=resources=VCPU:2"}, "Two flavors have the name 'a'"),
    ],
)
def test_errors_of_flavors_or_hosts_are_shown(client, parameters, said):
    assert said in read_answer(client, "capacity", HTTPStatus.BAD_REQUEST, **parameters)


def test_names_are_listed_with_how_many_have_them(client):
    text = read_answer(client, "names")
    assert "PCPU standard 12 6" in text
    assert "CUSTOM_GOLD custom 1 1" in text
    assert "HW_CPU_X86_AVX2" not in text
    assert "HW_CPU_X86_AVX2 standard 0 0" in read_answer(client, "names", text="avx2")


def test_a_consumer_is_found_by_its_uuid_and_shows_what_it_holds(client):
    guest = world.uuid_of("guest-1")
    answer = client.get(f"/console/consumers?uuid={guest.upper()}")
    assert answer.headers["Location"] == f"/console/consumers/{guest}"
    text = read_answer(client, f"consumers/{guest}")
    assert f"INSTANCE project {world.PROJECT}" in text
    assert "compute-1_NUMA0 compute-1 32 GiB MEMORY_MB 8 PCPU" in text
    assert "This is not a uuid" in read_answer(client, "consumers", uuid="x")
    assert client.get(f"/console/consumers/{EDGE}").status_code == HTTPStatus.NOT_FOUND
    assert client.get("/console/consumers/x").status_code == HTTPStatus.NOT_FOUND


def test_a_window_is_shown_before_its_start_and_while_claims_use_it(tmp_path, migrated_file):
    file = tmp_path / "placement.sqlite"
    shutil.copy(migrated_file, file)
    url = f"sqlite:///{file}"
    app = application(url, console={"enabled": True})
    admin, client = Admin(app), Client(app)
    host = make_provider(admin, "h-1", VCPU=8)
    window = booked(admin, 6, 2, 4, lead_time=600)
    begin = show(admin, window)["starts_at"]
    assert f"/console/consumers/{window}" in client.get("/console/calendar").text
    text = read_answer(client, f"consumers/{window}")
    assert f"RESERVATION project project user user generation 1 state pending from {begin} until" in text
    assert "lead and cleaning time 600 seconds and 0 seconds" in text
    assert "Holds h-1 h-1 6 VCPU" in text
    generation = admin("GET", f"/resource_providers/{host}").json["generation"]
    put_inventories(admin, host, generation, VCPU=4)
    assert "2 VCPU of h-1 are missing: capacity exceeded" in read_answer(client, f"consumers/{window}")
    # from its start on, claims use all of it
    put_inventories(admin, host, generation + 1, VCPU=8)
    advance_clock(url, 2.5 * HOUR)
    claim = new_claim("resources=VCPU:6", project_id="project")
    assert post_claims(admin, claim, ends_at=after(HOUR), reservation=window).status_code == 201
    text = read_answer(client, f"consumers/{window}")
    assert "state active" in text
    assert "Used by its claims Holds h-1 h-1 6 VCPU" in text


def test_a_reader_sees_his_project_and_nothing_else(client):
    answer = client.get("/console", headers=READER)
    assert answer.headers["Location"] == "/console/project"
    page = client.get("/console/project", headers=READER)
    assert page.status_code == HTTPStatus.OK
    assert re.findall(r'<li><a href="/console/(\w*)', page.text) == ["project"]
    assert "INSTANCE" in page.text
    for path in ("", "candidates", "capacity", "names", "consumers", f"consumers/{world.uuid_of('guest-1')}"):
        refused = client.get(f"/console/{path}", headers=READER)
        assert refused.status_code == HTTPStatus.FORBIDDEN
        assert "compute" not in refused.text


def test_a_reader_of_another_project_sees_nothing_of_this_one(client):
    headers = {**READER, "X-Auth-Token": "somebody:another"}
    page = client.get("/console/project", headers=headers)
    assert "The project has no allocations" in page.text
    other = client.get(f"/console/project?project_id={world.PROJECT}", headers=headers)
    assert "The project has no allocations" in other.text


def form(client: Client, path: str) -> str:
    found = re.search(r'name="mark" value="(\w+)"', client.get(path).text)
    assert found
    return found[1]


def change(client: Client, **fields: str) -> Any:
    path = f"/console/providers/{EDGE}"
    return client.post(f"{path}/scheduling", data={"mark": form(client, path), **fields})


def test_a_host_is_disabled_with_a_reason_and_enabled_again(app, client):
    admin = Admin(app)
    before = admin("GET", f"/ext/v1/trees/{EDGE}").json["resource_providers"][0]
    assert change(client, do="disable", reason="  new\nmemory ").status_code == HTTPStatus.SEE_OTHER
    now = admin("GET", f"/ext/v1/trees/{EDGE}").json["resource_providers"][0]
    assert now["traits"] == ["COMPUTE_NODE", "COMPUTE_STATUS_DISABLED"]
    assert now["attributes"] == {"console.disabled_by": "admin", "console.disabled_reason": "new memory"}
    assert now["inventories"] == before["inventories"]
    assert "New guests are kept away: new memory (admin)" in read_answer(client, f"providers/{EDGE}")
    assert "disabled already" in change(client, do="disable", reason="x").text
    assert change(client, do="enable").status_code == HTTPStatus.SEE_OTHER
    after = admin("GET", f"/ext/v1/trees/{EDGE}").json["resource_providers"][0]
    assert {**after, "generation": 0} == {**before, "generation": 0}


def test_the_reason_goes_with_the_trait(app, client):
    admin = Admin(app)
    change(client, do="disable", reason="new memory")
    path = f"/resource_providers/{EDGE}/traits"
    for traits in (["COMPUTE_NODE"], ["COMPUTE_NODE", "COMPUTE_STATUS_DISABLED"]):  # as nova-compute does
        generation = admin("GET", path).json["resource_provider_generation"]
        admin("PUT", path, json={"resource_provider_generation": generation, "traits": traits})
    now = admin("GET", f"/ext/v1/trees/{EDGE}").json["resource_providers"][0]
    assert now["attributes"] == {}
    assert "kept away by the agent of the host" in read_answer(client, f"providers/{EDGE}")
    admin("DELETE", path)
    generation = admin("GET", path).json["resource_provider_generation"]
    admin("PUT", path, json={"resource_provider_generation": generation, "traits": ["COMPUTE_NODE"]})


def test_a_host_that_others_disabled_is_not_enabled_here(client):
    host = f"/console/providers/{world.uuid_of('compute-9')}"
    assert "by the agent of the host" in read_answer(client, f"providers/{world.uuid_of('compute-9')}")
    mark = form(client, f"/console/providers/{EDGE}")
    answer = client.post(f"{host}/scheduling", data={"mark": mark, "do": "enable"})
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert "was not disabled here" in answer.text


def test_a_host_is_not_disabled_without_a_reason_nor_by_another_site_nor_without_the_right(client):
    assert change(client, do="disable", reason=" ").status_code == HTTPStatus.BAD_REQUEST
    path = f"/console/providers/{EDGE}/scheduling"
    mark = form(client, f"/console/providers/{EDGE}")
    data = {"mark": mark, "do": "disable", "reason": "x"}
    assert client.post(path, data={**data, "mark": "0" * 64}).status_code == HTTPStatus.FORBIDDEN
    other_site = client.post(path, data=data, headers={"Sec-Fetch-Site": "cross-site"})
    assert other_site.status_code == HTTPStatus.FORBIDDEN
    assert client.post(path, data=data, headers=READER).status_code == HTTPStatus.FORBIDDEN
    assert client.get(path).status_code == HTTPStatus.METHOD_NOT_ALLOWED
    client.delete_cookie(PLAIN_COOKIE)
    assert client.post(path, data=data).status_code == HTTPStatus.FORBIDDEN
    assert "Keep new guests away" in read_answer(client, f"providers/{EDGE}")


def test_an_administrator_sees_the_reservations_of_all_projects(app, client, monkeypatch):
    assert "Reservations There are no reservations." in read_answer(client, "consumers")
    monkeypatch.setattr("placement_extras.console.consumers._PER_PAGE", 1)
    admin, made = Admin(app), []
    for number, project in enumerate((world.PROJECT, world.OTHER_PROJECT)):
        uuid = world.uuid_of(f"reservation {number}")
        body = {"uuid": uuid, "project_id": project, "user_id": "ann", "query": "resources=VCPU:1"}
        body |= {"group": f"group-{number}", "expires_in": 3600}
        assert admin("POST", "/ext/v1/reservations", json=body).status_code == HTTPStatus.CREATED
        made.append((uuid, project, f"group-{number}"))
    (first, second) = sorted(made)
    text = read_answer(client, "consumers")
    assert " ".join(first) in text
    assert second[0] not in text
    assert " ".join(second) in read_answer(client, "consumers", after=first[0])
    assert f"{first[0]}" in read_answer(client, f"consumers/{first[0]}")
    for uuid, _, _ in made:
        assert admin("DELETE", f"/ext/v1/reservations/{uuid}").status_code == HTTPStatus.NO_CONTENT


def test_a_query_may_be_on_several_lines():
    assert questions.query_of("resources=VCPU:1 \n\n &required=A&\n") == "resources=VCPU:1&required=A"


ASKED = "resources=VCPU:2,MEMORY_MB:1024&required=%21CUSTOM_GOLD"
LOGGED = (
    '10.0.0.7 - - [24/Nov/2026:00:01:02 +0000] "GET /placement/allocation_candidates?{} HTTP/1.1" 200 4711',
    '2026-11-24 00:01:02.003 7 INFO placement.requestlog [req-1 - - - - -] 10.0.0.7 "GET '
    '/allocation_candidates?{}" status: 200 len: 4711 microversion: 1.39 time: 0.001',
)


@pytest.mark.parametrize(
    "pasted",
    [
        "http://controller/placement/allocation_candidates?{}",
        "   http://controller/placement/allocation_candidates?{}  ",
        '"http://controller/placement/allocation_candidates?{}"',
        "'http://controller/placement/allocation_candidates?{}'",
        "GET /allocation_candidates?{}",
        "GET /placement/allocation_candidates?{} HTTP/1.1",
        "curl -s -H 'X-Auth-Token: t?' 'http://controller/allocation_candidates?{}' | jq .",
        '$ curl -s "http://controller/allocation_candidates?{}" \\\n  -H "Accept: a"',
        *LOGGED,
        "  " + LOGGED[1],
        "\n".join((LOGGED[1], LOGGED[0])),
        '{{"path": "/allocation_candidates?{}", "status": 200}}',
        "?{}",
    ],
)
def test_a_query_is_found_in_what_was_pasted(client, pasted):
    text = pasted.format(*(ASKED for _ in range(pasted.count("{}"))))
    assert questions.query_of(text) == ASKED
    assert "on 6 hosts" in read_answer(client, "candidates", query=text)


def test_lines_below_an_address_go_on_with_parameters():
    assert questions.query_of(f"http://a/allocation_candidates?{ASKED}\n  &limit=1\n") == f"{ASKED}&limit=1"


def test_the_parameters_of_a_command_of_curl_may_be_options():
    command = (
        "curl -G http://controller/allocation_candidates -d resources=VCPU:2 --data-urlencode 'required=!A'"
    )
    assert questions.query_of(command) == "resources=VCPU:2&required=%21A"


def test_a_command_of_curl_with_half_a_quote_is_refused(client):
    text = read_answer(
        client, "candidates", HTTPStatus.BAD_REQUEST, query="curl 'http://a/allocation_candidates?"
    )
    assert "A quote is not closed" in text


def test_a_flavor_for_which_no_moves_make_room_is_said_to_be_one(client):
    text = read_answer(client, "capacity", flavors="a=resources=LLC:9999", moves="1")
    assert "Moves that make room for one more a No moves make room" in text


def test_capacity_says_of_a_query_that_it_counts_disabled_hosts(client):
    query = "resources=PCPU:8"
    text = read_answer(client, "capacity", flavors=f"a={query}")
    assert "a: 1 counted host has COMPUTE_STATUS_DISABLED at the root; " in text
    assert "leaves such hosts out" not in read_answer(client, "capacity", flavors="a: vcpus=8 ram=1")
    text = read_answer(client, "capacity", flavors=f"a={query}&root_required=!COMPUTE_STATUS_DISABLED")
    assert "leaves such hosts out" not in text


def test_capacity_is_counted_for_flavors_as_nova_has_them(client):
    flavors = "large: vcpus=8 ram=16384 hw:cpu_policy=dedicated\n"
    flavors += "same=resources=PCPU:8,MEMORY_MB:16384&root_required=!COMPUTE_STATUS_DISABLED"
    page = client.get("/console/capacity", query_string={"flavors": flavors})
    assert page.status_code == HTTPStatus.OK
    assert re.findall(r'<li class="panel"><h3>(\w+)</h3>', page.text) == ["large", "same"]
    large, same = re.findall(r'<p class="big">([0-9]+) ', page.text)
    assert large == same != "0"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("large", "A flavor is NAME=QUERY or NAME:"),
        ("large: vcpus=many", "The number of VCPUs is a whole number"),
        ("large: ram=5", "The number of VCPUs is a whole number"),
        ("large: vcpus=1 dedicated", "An extra spec has the form NAME=VALUE"),
        ("large: vcpus=1 a='b", "A quote is not closed"),
        ("=resources=VCPU:1", "name"),
    ],
)
def test_a_line_that_is_no_flavor_is_said_to_be_none(client, line, words):
    page = client.get("/console/capacity", query_string={"flavors": line})
    assert page.status_code == HTTPStatus.BAD_REQUEST
    assert words in page.text


@pytest.mark.parametrize(
    ("page", "asked"),
    [
        ("candidates", {"vcpus": "1", "ram": "1", "specs": "hw:cpu_polic=dedicated"}),
        ("candidates", {"vcpus": "4096", "ram": "1", "specs": "hw:cpu_polic=dedicated"}),
        ("capacity", {"flavors": "large: vcpus=1 ram=1 hw:cpu_polic=dedicated"}),
    ],
)
def test_parts_of_a_flavor_that_are_not_understood_are_shown(client, page, asked):
    warning = "hw:cpu_polic is not an extra spec that Nova knows (did you mean hw:cpu_policy?)"
    assert warning in read_answer(client, page, **asked)


def test_a_number_is_digits_of_ascii():
    for text in ("²", "-1", "1e3", "1.5"):
        with pytest.raises(InvalidRequest):
            questions.GuestQuestion(vcpus=text).request_body()
