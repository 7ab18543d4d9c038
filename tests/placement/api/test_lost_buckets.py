"""Tests of a database that has lost rows of ``change_buckets``: each error names the command that
repairs it.
"""

from http import HTTPStatus

import pytest
from werkzeug.test import TestResponse

from placement.cmd.manage import main
from placement.db import buckets
from tests.placement.builders import inventories_body, make_provider
from tests.placement.running import Admin, application
from tests.placement.sql import execute_sql

HOST = "542df8ed-9be2-49b9-b4db-6d3183ff8ec8"
INVENTORIES = f"/resource_providers/{HOST}/inventories"
VCPUS = inventories_body(0, VCPU=8)


@pytest.fixture
def url(database_url: str) -> str:
    """The URL of a database with one host that has VCPU."""
    make_provider(Admin(application(database_url)), "host", provider=HOST, VCPU=8)
    return database_url


def read(admin: Admin) -> TestResponse:
    return admin("GET", INVENTORIES)


def write(admin: Admin) -> TestResponse:
    return admin("PUT", INVENTORIES, json={**VCPUS, "resource_provider_generation": 1})


@pytest.mark.parametrize("condition", ["1 = 1", f"id = {buckets.bucket_of(HOST)}"], ids=["all", "one"])
@pytest.mark.parametrize("first", [read, write], ids=["read", "write"])
@pytest.mark.parametrize("is_new", [False, True], ids=["running", "new"])
def test_requests_name_the_remedy_and_it_works(
    url: str, tmp_path, capsys, condition: str, first, is_new: bool
) -> None:
    running = Admin(application(url))
    assert read(running).status_code == 200
    execute_sql(url, f"DELETE FROM change_buckets WHERE {condition}")
    admin = Admin(application(url)) if is_new else running
    for ask in (first, read, write):
        answer = ask(admin)
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE, answer.text
        assert "change_buckets" in answer.text
        assert "placement-manage db sync" in answer.text
    file = tmp_path / "placement.conf"
    file.write_text(f"[placement_database]\nconnection = {url.replace('$', '$$')}\n")
    assert main(["--config-file", str(file), "audit"]) == 1
    assert "placement-manage db sync" in capsys.readouterr().err
    assert main(["--config-file", str(file), "db", "sync"]) == 0
    for each in (admin, Admin(application(url))):
        assert read(each).json["resource_provider_generation"] == 1
    assert write(admin).json["resource_provider_generation"] == 2
    assert read(running).json["resource_provider_generation"] == 2
