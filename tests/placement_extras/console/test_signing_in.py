"""Tests of signing in to the console: rights, lifetimes and limits, and attacks on sessions."""

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from placement_extras.console.page_request import COOKIE
from placement_extras.console.signing_in import counted_as
from tests.placement_extras.console.behind_keystone import AUTHTOKEN, SIGN_IN, Browser, service
from tests.placement_extras.console.fake_identity import CREDENTIAL, FakeIdentity, serving

RIGHT = {"username": "operator", "password": "operator-secret", "user_domain": "Default"}
WRONG = {**RIGHT, "password": "no"}


@pytest.fixture
def identity() -> Iterator[FakeIdentity]:
    with serving() as running:
        yield running


@pytest.fixture
def file(tmp_path: Path, migrated_file: Path) -> Path:
    file = tmp_path / "placement.sqlite"
    shutil.copy(migrated_file, file)
    return file


@pytest.fixture
def app(identity: FakeIdentity, file: Path, tmp_path: Path) -> Any:
    return service(AUTHTOKEN.format(url=identity.url), file, tmp_path)


@pytest.fixture
def browser(app: Any) -> Browser:
    return Browser(app)


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/providers/x", "/console/nothing"])
def test_a_visitor_without_a_session_is_sent_to_the_form_to_sign_in(browser, path):
    answer = browser.get(path)
    assert answer.status_code == HTTPStatus.SEE_OTHER
    assert answer.headers["Location"].startswith(SIGN_IN)


def test_a_token_or_a_name_in_headers_is_no_session(browser):
    headers = {"X-Auth-Token": "admin", "X-Roles": "admin", "X-Identity-Status": "Confirmed"}
    assert browser.get("/console/", headers=headers).status_code == HTTPStatus.SEE_OTHER
    assert browser.get(SIGN_IN, headers=headers).status_code == HTTPStatus.OK


def test_the_stylesheet_needs_no_session(browser):
    assert browser.get("/console/static/console.css").status_code == HTTPStatus.OK


def test_after_signing_in_there_is_the_page_that_was_wanted(browser):
    wanted = browser.get("/console/?name=%C3%A4&trait=A").headers["Location"]
    answer = browser.sign_in(RIGHT, wanted)
    assert answer.status_code == HTTPStatus.SEE_OTHER
    assert answer.headers["Location"] == "/console/?name=%C3%A4&trait=A"
    page = browser.get("/console/")
    assert page.status_code == HTTPStatus.OK
    assert "operator in cloud" in page.text


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example.org/",
        "//evil.example.org",
        "/\\evil",
        "/resource_providers",
        "/console",
        "/console/%0d%0aX: y",
    ],
)
def test_a_visitor_is_not_sent_to_another_site_after_signing_in(browser, wanted):
    answer = browser.sign_in(RIGHT, f"{SIGN_IN}?next={wanted}")
    assert answer.headers["Location"] == "/console"


def test_an_application_credential_will_do(browser):
    fields = {"application_credential": CREDENTIAL[0], "application_secret": CREDENTIAL[1]}
    assert browser.sign_in(fields).status_code == HTTPStatus.SEE_OTHER
    assert browser.get("/console/").status_code == HTTPStatus.OK


@pytest.mark.parametrize("given", [(CREDENTIAL[0], "no"), ("0" * 32, CREDENTIAL[1])])
def test_an_application_credential_that_is_wrong_is_refused(browser, given):
    fields = {"application_credential": given[0], "application_secret": given[1]}
    assert browser.sign_in(fields).status_code == HTTPStatus.UNAUTHORIZED


def test_a_reader_of_a_project_sees_no_hosts(browser):
    browser.sign_in({"username": "reader", "password": "reader-secret", "project": "research"})
    answer = browser.get("/console/")
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert "reader in research" in answer.text


def test_a_wrong_password_is_said_to_be_wrong_and_not_shown(browser):
    answer = browser.sign_in({**RIGHT, "password": "hunter2-is-wrong"})
    assert answer.status_code == HTTPStatus.UNAUTHORIZED
    assert "refused these credentials" in answer.text
    assert 'value="operator"' in answer.text
    assert "hunter2" not in answer.text
    assert browser.get("/console/").status_code == HTTPStatus.SEE_OTHER


def test_the_cookie_is_for_https_alone_and_for_no_script_and_new_for_each_session(browser):
    before = browser.get(SIGN_IN).headers["Set-Cookie"]
    after = browser.sign_in(RIGHT).headers["Set-Cookie"]
    for cookie in (before, after):
        assert cookie.startswith(f"{COOKIE}=")
        assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
        assert "Domain" not in cookie
    assert before.split(";")[0] != after.split(";")[0]


def test_the_database_reveals_neither_visitors_nor_their_tokens(browser, identity, file):
    browser.sign_in(RIGHT)
    content = str(sqlite3.connect(file).execute("SELECT * FROM console_sessions").fetchall())
    assert content != "[]"
    for hidden in (browser.secret, "operator", *identity.tokens):
        assert hidden not in content


def test_signing_in_again_leaves_no_session_behind(browser, app):
    browser.sign_in(RIGHT)
    before = browser.secret
    browser.sign_in({"username": "reader", "password": "reader-secret"})
    assert "reader in research" in browser.get("/console/project").text
    left = Browser(app)
    left.take(before)
    assert left.get("/console/").status_code == HTTPStatus.SEE_OTHER


def test_a_session_holds_on_every_worker(browser, identity, file, tmp_path):
    browser.sign_in(RIGHT)
    other = Browser(service(AUTHTOKEN.format(url=identity.url), file, tmp_path))
    other.take(browser.secret)
    assert "operator in cloud" in other.get("/console/").text


def test_a_session_that_was_tampered_with_is_none(browser, file):
    browser.sign_in(RIGHT)
    with sqlite3.connect(file) as database:
        database.execute("UPDATE console_sessions SET content = 'gAAAAAB' || content")
    assert browser.get("/console/").status_code == HTTPStatus.SEE_OTHER


def test_a_session_ends_with_its_time(browser, file):
    browser.sign_in(RIGHT)
    with sqlite3.connect(file) as database:
        ((left,),) = database.execute(
            "SELECT expires_at - (julianday('now') - 2440587.5) * 86400 FROM console_sessions"
        )
        assert 3000 < left <= 3600  # the token's, which is shorter than [console] session_lifetime
        database.execute("UPDATE console_sessions SET expires_at = expires_at - 3601")
    assert browser.get("/console/").status_code == HTTPStatus.SEE_OTHER
    with sqlite3.connect(file) as database:  # the first visit to this worker tidies up
        assert database.execute("SELECT count(*) FROM console_sessions").fetchall() == [(0,)]


def test_a_session_ends_when_its_token_is_revoked(browser, identity):
    browser.sign_in(RIGHT)
    assert browser.get("/console/").status_code == HTTPStatus.OK
    identity.tokens = {
        token: each for token, each in identity.tokens.items() if each["user"]["name"] == "placement"
    }
    assert browser.get("/console/").status_code == HTTPStatus.SEE_OTHER


def test_signing_out_ends_the_session_for_all_copies_of_the_cookie(browser, app):
    browser.sign_in(RIGHT)
    thief = Browser(app)
    thief.take(browser.secret)
    answer = browser.post("/console/sign-out", data={"mark": browser.form("/console/")})
    assert answer.headers["Location"] == SIGN_IN
    assert browser.secret is None
    assert thief.get("/console/").status_code == HTTPStatus.SEE_OTHER


@pytest.mark.parametrize("mark", ["", "0" * 64, "ä"])
@pytest.mark.parametrize("path", [SIGN_IN, "/console/sign-out"])
def test_a_form_of_another_site_is_refused(browser, identity, path, mark):
    browser.sign_in(RIGHT)
    asked = identity.asked
    answer = browser.post(path, data={**RIGHT, "mark": mark})
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert identity.asked == asked
    assert browser.get("/console/").status_code == HTTPStatus.OK


def test_a_form_that_the_browser_says_is_of_another_site_is_refused(browser, identity):
    answer = browser.sign_in(RIGHT, headers={"Sec-Fetch-Site": "same-site"})
    assert answer.status_code == HTTPStatus.FORBIDDEN
    assert identity.asked == 0


def test_after_five_wrong_passwords_the_identity_service_is_not_asked_for_a_while(browser, identity, file):
    statuses = [browser.sign_in(WRONG).status_code for _ in range(5)]
    assert statuses == [HTTPStatus.UNAUTHORIZED] * 5
    answer = browser.sign_in(RIGHT)
    assert (answer.status_code, answer.headers["Retry-After"]) == (HTTPStatus.TOO_MANY_REQUESTS, "300")
    assert identity.asked == 5
    # other users can still sign in, and so can the same user from another address
    reader = {"username": "reader", "password": "reader-secret"}
    assert browser.sign_in(reader).status_code == HTTPStatus.SEE_OTHER
    elsewhere = browser.sign_in(RIGHT, environ_overrides={"REMOTE_ADDR": "192.0.2.7"})
    assert elsewhere.status_code == HTTPStatus.SEE_OTHER
    with sqlite3.connect(file) as database:
        database.execute("UPDATE console_attempts SET at = at - 301")
    assert browser.sign_in(RIGHT).status_code == HTTPStatus.SEE_OTHER


def test_a_refused_attempt_neither_blocks_writes_nor_waits(browser, identity, file):
    for _ in range(5):
        browser.sign_in(WRONG)
    mark = browser.form()
    with sqlite3.connect(file, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        answer = browser.post(SIGN_IN, data={**WRONG, "mark": mark})
        writer.execute("ROLLBACK")
    assert answer.status_code == HTTPStatus.TOO_MANY_REQUESTS


def test_an_identity_service_that_hangs_has_one_thread_of_four_however_many_ask(browser, app, identity):
    identity.held.clear()
    waiting = threading.Thread(target=browser.sign_in, args=(RIGHT,))
    waiting.start()
    try:
        assert identity.entered.wait(10)
        answer = Browser(app).sign_in({"username": "reader", "password": "reader-secret"})
    finally:
        identity.held.set()
        waiting.join()
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "Other visitors are signing in" in answer.text
    assert "operator in cloud" in browser.get("/console/").text
    assert Browser(app).sign_in(RIGHT).status_code == HTTPStatus.SEE_OTHER


def test_subjects_of_attempts_cannot_be_found_out_from_a_copy_of_the_database(
    browser, file, identity, tmp_path
):
    def subjects() -> set[str]:
        with sqlite3.connect(file) as database:
            return {subject for (subject,) in database.execute("SELECT subject FROM console_attempts")}

    browser.sign_in(WRONG)
    before = subjects()
    alike = AUTHTOKEN.format(url=identity.url)
    Browser(service(alike, file, tmp_path)).sign_in(WRONG)
    assert subjects() == before
    Browser(service(alike.replace("placement-secret", "another"), file, tmp_path)).sign_in(WRONG)
    assert len(subjects() - before) == len(before)


def test_one_address_cannot_try_many_names(browser, identity, file):
    browser.sign_in(WRONG)
    with sqlite3.connect(file) as database:
        ((address,),) = database.execute("SELECT subject FROM console_attempts ORDER BY id DESC LIMIT 1")
        ((at,),) = database.execute("SELECT max(at) FROM console_attempts")
        # as a worker of an older release counts
        database.executemany("INSERT INTO console_attempts (subject, at) VALUES (?, ?)", [(address, at)] * 49)
    answer = browser.sign_in({"username": "reader", "password": "reader-secret"})
    assert answer.status_code == HTTPStatus.TOO_MANY_REQUESTS


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("[2001:db8:0:7:bbbb::2]:4711", "2001:db8:0:7::"),
        ("[::ffff:192.0.2.7]:1", "192.0.2.7"),
        ("192.0.2.7:4711:1", "192.0.2.7:4711:1"),
        ("made-up, 10.0.0.1, 192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:7:aaaa::1", "2001:db8:0:7::"),
        ("[2001:db8:0:7:bbbb::2]", "2001:db8:0:7::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_an_attempt_counts_for_the_address_that_the_client_cannot_choose(sent, counted):
    assert counted_as(sent) == counted


def test_addresses_that_a_client_makes_up_are_no_way_around_the_limit(identity, file, tmp_path):
    believing = "[oslo_middleware]\nenable_proxy_headers_parsing = true\n"
    browser = Browser(service(believing + AUTHTOKEN.format(url=identity.url), file, tmp_path))
    statuses = [
        browser.sign_in(WRONG, headers={"X-Forwarded-For": f"10.0.0.{n}, 192.0.2.7"}).status_code
        for n in range(6)
    ]
    assert statuses[4:] == [HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS]


@pytest.mark.parametrize("other", ["other=\xff", f"{COOKIE}\xff=x", f"\xff{COOKIE}=x", f"\xa0{COOKIE}=x"])
def test_cookies_of_others_may_be_any_bytes(browser, app, other):
    browser.sign_in(RIGHT)
    plain = Client(app, use_cookies=False)
    assert plain.get("/console/", environ_overrides={"HTTP_COOKIE": other}).status_code == 303
    both = {"HTTP_COOKIE": f"{other}; {COOKIE}={browser.secret}"}
    assert plain.get("/console/", environ_overrides=both).status_code == HTTPStatus.OK


def test_an_identity_service_that_is_away_is_said_to_be_away(browser, identity):
    identity.away = True
    assert browser.sign_in(RIGHT).status_code == HTTPStatus.SERVICE_UNAVAILABLE
    identity.away = False
    assert browser.sign_in(RIGHT).status_code == HTTPStatus.SEE_OTHER
    identity.away = True
    answer = browser.get("/console/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "5")
    assert "your session cannot be checked" in answer.text
    identity.away = False
    assert browser.get("/console/").status_code == HTTPStatus.OK


@pytest.mark.parametrize(
    "fields", [{}, {"username": "operator"}, {"password": "x"}, {"application_credential": "x"}]
)
def test_missing_fields_are_named(browser, identity, fields):
    answer = browser.sign_in(fields)
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert "fill in" in answer.text
    assert identity.asked == 0


@pytest.mark.parametrize("name", ["x" * 10_000, "\x00", "a'; --", "😀"])
def test_any_name_can_be_typed(browser, name):
    assert browser.sign_in({"username": name, "password": name}).status_code == HTTPStatus.UNAUTHORIZED


def test_no_other_part_of_the_service_knows_the_cookie(browser):
    browser.sign_in(RIGHT)
    assert browser.get("/resource_providers").status_code == HTTPStatus.UNAUTHORIZED
