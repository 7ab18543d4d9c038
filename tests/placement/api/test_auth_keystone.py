"""Tests of ``[api] auth_strategy = keystone``. keystonemiddleware's own fixture stands in for the Identity
service.
"""

from datetime import timedelta

import pytest
from keystoneauth1.exceptions import ConnectFailure, EndpointNotFound
from keystonemiddleware.fixture import AuthTokenFixture
from oslo_utils import timeutils

from placement.api.auth import add_authentication
from placement.conf import new_config


@pytest.fixture
def conf(tmp_path):
    file = tmp_path / "placement.conf"
    file.write_text("[keystone_authtoken]\nwww_authenticate_uri = http://identity.example.com\n")
    return new_config(config_files=[str(file)])


@pytest.fixture
def tokens():
    """The tokens that the Identity service knows. ``tokens(id, role_list=...)`` adds a token."""
    with AuthTokenFixture() as fixture:

        def add(token_id, *, role_list=("admin", "member", "reader"), expires_in=timedelta(hours=1)):
            fixture.add_token_data(
                token_id=token_id,
                expires=timeutils.utcnow() + expires_in,
                user_id="ann",
                project_id="p",
                role_list=role_list,
            )

        yield add


@pytest.fixture
def client(handlers, conf, client_of):
    return client_of(add_authentication(handlers, conf))


def assert_refused(answer, status=401):
    (error,) = answer.json["errors"]
    assert error["status"] == status
    if status == 401:
        assert error["detail"] == "The request you have made requires authentication."
        assert answer.headers["WWW-Authenticate"] == 'Keystone uri="http://identity.example.com"'


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": ""}, {"X-Auth-Token": "unknown"}])
def test_a_request_without_a_known_token_is_401(client, handlers, headers):
    assert_refused(client.get("/resource_providers", headers=headers, status=401))
    assert handlers.callers == []


def test_an_expired_token_is_401(client, tokens):
    tokens("stale", expires_in=-timedelta(minutes=1))
    assert_refused(client.get("/traits", headers={"X-Auth-Token": "stale"}, status=401))


def test_a_known_token_identifies_the_caller(client, handlers, tokens):
    tokens("good", role_list=["member", "reader"])
    client.get("/traits", headers={"X-Auth-Token": "good"}, status=200)
    caller = handlers.caller
    assert (caller.user_id, caller.project_id, caller.roles) == ("ann", "p", ["member", "reader"])
    assert not caller.system_scope


def test_identity_headers_of_a_client_are_ignored(client, handlers, tokens):
    tokens("good", role_list=["reader"])
    claims = {
        "X-Roles": "admin",
        "X-Role": "admin",
        "X-Service-Roles": "service",
        "X-User-Id": "root",
        "X-Project-Id": "q",
        "X-Tenant-Id": "q",
        "X-Identity-Status": "Confirmed",
        "OpenStack-System-Scope": "all",
    }
    client.get("/traits", headers={"X-Auth-Token": "good", **claims}, status=200)
    caller = handlers.caller
    assert (caller.user_id, caller.project_id, caller.roles) == ("ann", "p", ["reader"])
    assert (caller.service_roles, caller.system_scope) == ([], None)
    assert_refused(client.get("/traits", headers=claims, status=401))


def test_the_version_document_needs_no_token(client, handlers):
    client.get("/", headers={"X-Roles": "admin", "X-User-Id": "root"}, status=200)
    assert (handlers.caller.user_id, handlers.caller.roles) == (None, [])


def test_an_unknown_service_token_is_401(client, tokens):
    tokens("good")
    headers = {"X-Auth-Token": "good", "X-Service-Token": "unknown"}
    assert_refused(client.get("/traits", headers=headers, status=401))


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": "unknown"}, {"X-Identity-Status": "Confirmed"}])
def test_delay_auth_decision_admits_no_request_without_a_token(conf, handlers, client_of, headers):
    add_authentication(handlers, conf)  # makes the options of keystonemiddleware known
    conf.set_override("delay_auth_decision", True, group="keystone_authtoken")
    client = client_of(add_authentication(handlers, conf))
    assert_refused(client.get("/traits", headers=headers, status=401))
    assert handlers.callers == []


@pytest.mark.parametrize("failure", [ConnectFailure, EndpointNotFound])
def test_an_identity_service_that_cannot_be_asked_is_503(client, handlers, monkeypatch, failure):
    def verify_token(*args, **kwargs):
        raise failure("no answer")

    monkeypatch.setattr("keystonemiddleware.auth_token._identity.IdentityServer.verify_token", verify_token)
    answer = client.get("/traits", headers={"X-Auth-Token": "good"}, status=503)
    assert_refused(answer, 503)
    assert answer.headers["Retry-After"] == "5"
    assert answer.json["errors"][0]["detail"] == "The Identity service is temporarily unavailable."
    assert handlers.callers == []
