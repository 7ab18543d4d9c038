"""Tests of pages without a browser: the rights that they need, their content, and what they forbid."""

import re
import subprocess
import sys
from http import HTTPStatus
from pkgutil import resolve_name
from threading import Thread

import pytest
from flask import render_template
from werkzeug.test import Client

from placement.api.middleware import build_application
from placement.policies import ext
from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement_extras import console
from placement_extras.console import fleet
from placement_extras.console.app import create_app
from placement_extras.console.page_request import PageRequest
from tests.placement.running import service_conf
from tests.placement_extras.console import world
from tests.placement_extras.console.pages import READER, read_page

ADMIN = {"X-Auth-Token": "admin"}
HOST = f"/console/providers/{world.uuid_of('compute-1')}"
NONE: frozenset[str] = frozenset()
ALL = ["/console/", HOST]


def test_the_console_is_there_only_where_it_is_enabled(sqlite_url):
    conf = service_conf(sqlite_url)
    assert console.APPLICATION.find_maker(conf) is None
    off = Client(build_application(conf))
    answer = off.get("/console/", headers={"X-Auth-Token": "admin"})
    assert (answer.status_code, answer.mimetype) == (HTTPStatus.NOT_FOUND, "application/json")


def test_a_path_that_only_begins_like_the_console_belongs_to_the_api(client):
    answer = client.get("/consoles", headers={"X-Auth-Token": "admin"})
    assert (answer.status_code, answer.mimetype) == (HTTPStatus.NOT_FOUND, "application/json")
    assert client.get("/resource_providers").status_code == HTTPStatus.UNAUTHORIZED


def test_the_console_begins_with_the_fleet(client):
    answer = client.get("/console")
    assert (answer.status_code, answer.headers["Location"]) == (HTTPStatus.FOUND, "/console/")
    text = read_page(client, "/console/")
    assert "8 hosts" in text
    assert text.index("compute-2 ") < text.index("compute-10 ")


def test_a_service_below_a_prefix_links_to_itself(client):
    answer = client.get("/console/", environ_overrides={"SCRIPT_NAME": "/placement"})
    links = re.findall(r'(?:href|action)="(/[^"]*)"', answer.text)
    assert links
    assert all(link.startswith("/placement/console") for link in links)


@pytest.mark.parametrize("path", ALL)
def test_a_visitor_that_may_not_read_it_over_rest_sees_no_page(client, path):
    answer = client.get(path, headers=READER)
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert "Policy does not allow placement:resource_providers:list" in answer.text
    assert "compute-1" not in answer.text
    assert 'href="/console/">Fleet' not in answer.text


OUR_SCRIPT = r'<script src="/console/static/(htmx\.min|console)\.js\?v=[0-9a-f]{16}" defer>'


@pytest.mark.parametrize("path", [*ALL, "/console/nothing", "/console/static/console.css"])
def test_every_answer_forbids_other_scripts_frames_and_what_is_elsewhere(client, path):
    answer = client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    if answer.mimetype == "text/html":
        assert answer.headers["Cache-Control"] == "no-store"
        scripts = re.findall(r"<script[^>]*>", answer.text)
        assert all(re.fullmatch(OUR_SCRIPT, each) for each in scripts)
        assert bool(scripts) == (' hx-get="' in answer.text)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|javascript:", answer.text)


@pytest.mark.parametrize(
    "path",
    ["nothing.css", "../app.py", "console.css", "console.css?v=of-another-release", "./console.css?v={}"],
)
def test_only_a_file_asked_for_by_its_digest_is_kept(client, path):
    page = client.get("/console/").text
    address, digest = re.search(r'href="(/console/static/console.css\?v=(\w+))"', page).groups()
    assert "immutable" in client.get(address).headers["Cache-Control"]
    answer = client.get("/console/static/" + path.format(digest))
    assert answer.headers["Cache-Control"] == "no-store"


def test_the_reason_for_disabling_a_host_is_shown_with_the_right_to_read_attributes(client, monkeypatch):
    path = f"/console/providers/{world.uuid_of('edge-1')}"
    mark = re.search(r'name="mark" value="(\w+)"', client.get(path).text)[1]
    client.post(f"{path}/scheduling", data={"mark": mark, "do": "disable", "reason": "a secret"})
    try:
        assert "a secret" in client.get(path).text
        may = PageRequest.may_use
        with monkeypatch.context() as patch:
            patch.setattr(
                PageRequest, "may_use", lambda self, *rules: ext.ATTRIBUTES not in rules and may(self, *rules)
            )
            text = client.get(path).text
        assert "New guests are kept away" in text
        assert "a secret" not in text
    finally:
        client.post(f"{path}/scheduling", data={"mark": mark, "do": "enable"})


def test_a_host_shows_its_nested_providers_and_the_consumers_that_hold_something(client):
    text = read_page(client, HOST)
    assert "16 of 24 8 used" in text
    assert "95 GiB of 127 GiB 32 GiB used, 1 GiB of 128 GiB reserved, in steps of 2" in text
    assert "shares with ceph" in text
    listed = text[text.index("Consumers, with their allocations") :]
    guest, _ = listed.split(world.uuid_of("guest-1"))[1].split(world.uuid_of("guest-2"))
    assert f"INSTANCE {world.PROJECT} 32 GiB MEMORY_MB of compute-1_NUMA0 8 PCPU of compute-1_NUMA0" in guest


def test_the_page_of_a_part_shows_that_part_alone(client):
    text = read_page(client, f"/console/providers/{world.uuid_of('compute-1_NUMA1')}")
    assert "compute-1_NUMA1_L3_0" in text
    assert "compute-1_NUMA0" not in text
    assert world.uuid_of("guest-2") in text
    assert world.uuid_of("guest-1") not in text


def test_hosts_without_cpus_or_memory_strand_what_else_is_free(client):
    text = read_page(client, "/console/?resource_class=MEMORY_MB&state=full")
    assert "1 host of 8" in text
    assert "238 GiB free" not in text.split("Hosts")[0].split("stranded 238 GiB")[0]


@pytest.mark.parametrize("name", ["nobody", "a" * 10_000, "%00", "%ff"])
def test_a_provider_that_is_not_there_is_said_to_be_missing(client, name):
    answer = client.get(f"/console/providers/{name}")
    assert answer.status_code == HTTPStatus.NOT_FOUND
    assert answer.mimetype == "text/html"


@pytest.mark.parametrize(
    "query",
    [
        "page=0",
        "page=-1",
        "page=99999999999999999999",
        "page=x",
        "page=²",
        "state=x",
        "order=x",
        "name=%ff%00",
        "trait=" + "T" * 9000,
    ],
)
def test_any_filter_is_understood_or_left_out(client, query):
    assert client.get(f"/console/?{query}").status_code == HTTPStatus.OK


def test_texts_of_users_are_text_and_no_markup(client):
    answer = client.get("/console/?name=%22%3E%3Cimg+src%3Dx%3E&aggregate=%27%3E%3Cb%3E")
    assert "<img" not in answer.text
    assert "<b>" not in answer.text.split("</form>")[0]


def test_a_page_of_a_large_fleet_is_small():
    """Names have their maximum length, and there are more classes than columns. A page has at most 150 kB."""
    owned = {name: Inventory(10**6, 0, 1, 10**6, 1, 16.0) for name in (*fleet.FIRST_CLASSES, *"ABCDEFGH")}
    hosts = [
        Provider(n, f"{n:032}", f"{n}-" + "n" * 190, 0, None, n, 0.0, owned, {"VCPU": 77_777}, NONE, NONE)
        for n in range(1, 2 * fleet.PER_PAGE)
    ]
    shown = fleet.make_page(ModelSnapshot(hosts), fleet.HostFilter())
    assert len(shown.passing.rows) == fleet.PER_PAGE
    app = create_app(signs_in=False)
    with app.test_request_context("/console/"):
        page = render_template(
            "fleet.html",
            fleet=shown,
            wanted=fleet.HostFilter(),
            states=fleet.HostCondition,
            address=lambda **_: "/",
            address_of_page=lambda number: "/",
        )
    assert len(page.encode()) < 150_000


@pytest.mark.slow
def test_where_there_is_no_console_nothing_of_it_is_imported():
    program = "import sys, placement.wsgi; print(*[each for each in sys.modules if '.console' in each])"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.split() == ["placement_extras.console"]


def test_pages_are_read_only(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.open("/console/", method=method).status_code == HTTPStatus.METHOD_NOT_ALLOWED


def test_all_names_are_on_some_page(client):
    def rows(page, kind):
        text = client.get("/console/names", query_string={"all": 1, kind: page}).text
        section = text.split(f'<section aria-labelledby="{kind}">')[1].split("</section>")[0]
        return re.findall(r'<tr><th scope="row">(?:<a [^>]*>)?(\w+)', section)

    traits = [name for page in (1, 2) for name in rows(page, "traits")]
    assert 200 < len(set(traits)) == len(traits) <= 400
    assert rows(99, "traits") == rows(2, "traits")


def test_all_consumers_are_on_some_page_and_a_later_page_says_that_it_is_the_last(client, monkeypatch):
    monkeypatch.setattr("placement_extras.console.hosts._MAX_HOLDERS", 1)
    address = f"/console/providers/{world.uuid_of('compute-1')}"
    shown = [client.get(address, query_string={"holders": number}).text for number in (1, 2, 3)]
    found = [re.findall(r'/console/consumers/([0-9a-f-]{36})"', text) for text in shown]
    assert found == [[world.uuid_of("guest-1")], [world.uuid_of("guest-2")], []]
    assert 'rel="next"' in shown[0]
    assert 'rel="next"' not in shown[1]
    assert "There are no further allocations." in shown[2]


def test_all_providers_of_a_large_tree_are_on_some_page_below_what_leads_to_them(client, monkeypatch):
    monkeypatch.setattr("placement_extras.console.host.PER_PAGE", 2)
    address = f"/console/providers/{world.uuid_of('compute-1')}"
    names = {"compute-1"}
    for number in (1, 2):
        text = client.get(address, query_string={"providers": number}).text
        tree = text.split('<ul class="tree">')[1].split("</section>")[0]
        found = set(re.findall(r"<h\d><a [^>]*>([^<]+)</a></h\d>", tree))
        assert "compute-1" in found
        names |= found
    assert names == {
        "compute-1", *(f"compute-1_NUMA{node}{below}" for node in range(2) for below in ("", "_L3_0")),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "computes"),
    [
        ("/console/", "fleet.make_page"),
        ("/console/settings", "settings.make_page"),
        ("/console/names", "names.count_uses"),
        (HOST, "host.make_page"),
    ],
)
def test_no_request_waits_for_a_page_that_takes_long_to_compute(client, monkeypatch, path, computes):
    target = f"placement_extras.console.{computes}"
    compute, others = resolve_name(target), []

    def slow(*arguments, **options):
        asked = Thread(
            target=lambda: others.append(client.get("/resource_providers", headers=ADMIN).status_code)
        )
        asked.start()
        asked.join(10)
        assert not asked.is_alive()
        return compute(*arguments, **options)

    monkeypatch.setattr(target, slow)
    assert client.get(path).status_code == HTTPStatus.OK
    assert set(others) == {HTTPStatus.OK}
