"""Tests of the version document of the extended API, and of the format of its errors."""

import pytest

from placement.db import migration
from tests.placement.running import Admin, application


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('ext')}/placement.sqlite"
    migration.upgrade_schema(url)
    return application(url)


def test_the_version_document_names_itself_below_the_prefix_of_the_service(app):
    answer = Admin(app)("GET", "/ext/v1", environ_overrides={"SCRIPT_NAME": "/placement"})
    assert answer.json["version"]["links"] == [{"rel": "self", "href": "/placement/ext/v1"}]
    assert answer.json["version"]["id"] == "v1"


def test_the_version_document_needs_no_token(app):
    answer = Admin(app)("GET", "/ext/v1", headers={"X-Auth-Token": ""})
    assert answer.status_code == 200


def test_all_other_paths_below_the_prefix_need_a_token(app):
    assert Admin(app)("GET", "/ext/v1/", headers={"X-Auth-Token": ""}).status_code == 401
    assert Admin(app)("GET", "/ext/v1/nothing", headers={"X-Auth-Token": ""}).status_code == 401


@pytest.mark.parametrize("version", ["1.0", "1.22", "1.39"])
def test_errors_have_a_code_at_every_microversion(app, version):
    (error,) = Admin(app, version)("GET", "/ext/v1/nothing").json["errors"]
    assert (error["status"], error["code"]) == (404, "placement.undefined_code")


def test_errors_of_the_placement_api_have_a_code_since_1_23(app):
    (error,) = Admin(app, "1.22")("GET", "/external/v1").json["errors"]
    assert "code" not in error
