"""Tests of signing in to the console with a real Keystone."""

import shutil
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.keystone import CALLERS, Keystone
from tests.placement.keystone.serving import authtoken
from tests.placement_extras.console.behind_keystone import Browser, service

pytestmark = pytest.mark.slow


@pytest.fixture
def browser(keystone: Keystone, migrated_file: Path, tmp_path: Path) -> Browser:
    file = tmp_path / "placement.sqlite"
    shutil.copy(migrated_file, file)
    return Browser(service(authtoken(keystone), file, tmp_path))


def fields(name: str, **more: str) -> dict[str, str]:
    caller = CALLERS[name]
    given = {"username": caller.name, "password": caller.password, "project": caller.project or ""}
    return {**given, "user_domain": "Default", "project_domain": "Default", **more}


def test_an_administrator_signs_in_and_sees_the_fleet(browser: Browser) -> None:
    assert browser.sign_in(fields("admin")).status_code == HTTPStatus.SEE_OTHER
    answer = browser.get("/console/")
    assert answer.status_code == HTTPStatus.OK
    assert "a-admin in cloud" in answer.text


def test_a_reader_signs_in_and_sees_no_hosts(browser: Browser) -> None:
    assert browser.sign_in(fields("reader")).status_code == HTTPStatus.SEE_OTHER
    assert browser.get("/console/").status_code == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "wrong", [{"password": "no"}, {"username": "nobody"}, {"project": "other"}, {"user_domain": "none"}]
)
def test_wrong_credentials_are_refused(browser: Browser, wrong: dict[str, str]) -> None:
    assert browser.sign_in(fields("admin", **wrong)).status_code == HTTPStatus.UNAUTHORIZED


def test_an_application_credential_signs_in(browser: Browser, keystone: Keystone) -> None:
    secret = keystone.identity.application_credential(CALLERS["admin"])
    wrong = {"application_credential": secret["id"], "application_secret": "no"}
    assert browser.sign_in(wrong).status_code == HTTPStatus.UNAUTHORIZED
    right = {**wrong, "application_secret": secret["secret"]}
    assert browser.sign_in(right).status_code == HTTPStatus.SEE_OTHER
    assert browser.get("/console/").status_code == HTTPStatus.OK


def test_an_unknown_application_credential_is_refused(browser: Browser) -> None:
    given = {"application_credential": "0" * 32, "application_secret": "no"}
    assert browser.sign_in(given).status_code == HTTPStatus.UNAUTHORIZED
