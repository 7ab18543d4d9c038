"""Tests of ``[api] auth_strategy = noauth2``, by which the token itself names the caller."""

import pytest

from placement.api.auth import add_authentication


@pytest.fixture
def client(handlers, conf, client_of):
    return client_of(add_authentication(handlers, conf))


@pytest.mark.parametrize("path", ["/resource_providers", "/unknown", "/healthcheck/"])
@pytest.mark.parametrize("headers", [{}, {"X-Auth-Token": ""}])
def test_a_request_without_a_token_is_401(client, handlers, path, headers):
    answer = client.get(path, headers=headers, status=401)
    assert answer.headers["WWW-Authenticate"] == 'Noauth2 realm="placement"'
    (error,) = answer.json["errors"]
    assert (error["status"], error["title"]) == (401, "Unauthorized")
    assert error["detail"] == "The request you have made requires authentication."
    assert handlers.callers == []


def test_a_refusal_of_head_has_no_body(client):
    assert client.head("/traits", status=401).body == b""


def test_the_version_document_needs_no_token(client, handlers):
    client.get("/", status=200)
    assert (handlers.caller.user_id, handlers.caller.roles) == (None, [])


def test_roles_without_a_token_are_ignored(client, handlers):
    client.get("/", headers={"X-Roles": "admin", "X-User-Id": "root"}, status=200)
    assert (handlers.caller.user_id, handlers.caller.roles) == (None, [])


@pytest.mark.parametrize(
    ("headers", "user", "project", "roles"),
    [
        ({"X-Auth-Token": "admin"}, "admin", "admin", ["admin", "member", "reader", "service"]),
        ({"X-Auth-Token": "admin:p"}, "admin", "p", ["admin", "member", "reader", "service"]),
        ({"X-Auth-Token": "ann"}, "ann", "ann", []),
        ({"X-Auth-Token": "ann:p"}, "ann", "p", []),
        ({"X-Auth-Token": "ann:p:q"}, "ann", "p:q", []),
        ({"X-Auth-Token": "ann", "X-Roles": "member, reader"}, "ann", "ann", ["member", "reader"]),
        ({"X-Auth-Token": "admin", "X-Roles": "reader"}, "admin", "admin", ["reader"]),
        ({"X-Auth-Token": "ann", "X-Project-Id": "p"}, "ann", "p", []),
        ({"X-Auth-Token": "ann:q", "X-Project-Id": "p"}, "ann", "p", []),
    ],
)
def test_a_token_names_user_project_and_role(client, handlers, headers, user, project, roles):
    client.get("/traits", headers=headers, status=200)
    caller = handlers.caller
    assert (caller.user_id, caller.project_id, caller.roles, caller.system_scope) == (
        user,
        project,
        roles,
        None,
    )


def test_a_caller_with_system_scope_has_no_project(client, handlers):
    client.get(
        "/traits",
        headers={"X-Auth-Token": "ann", "X-Roles": "admin", "OpenStack-System-Scope": "all"},
        status=200,
    )
    assert (handlers.caller.project_id, handlers.caller.system_scope) == (None, "all")
