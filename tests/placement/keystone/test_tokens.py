"""Tests that tokens of a real Keystone are accepted or rejected correctly, and cached."""

import time

import pytest

from tests.keystone import CALLERS, Keystone, Memcached, MemcachedMissing
from tests.placement.keystone.serving import KeystonePlacement, authtoken, placement, read_refusal
from tests.waits import wait_for

pytestmark = pytest.mark.slow


NOBODY = (401, "The request you have made requires authentication.")


def test_a_request_without_a_valid_token_is_rejected(keystone: Keystone, service: KeystonePlacement) -> None:
    good = keystone.identity.token(CALLERS["admin"])
    assert service.status(good) == 200
    for token in (None, "", "gAAAAAB-no-token", good[:-2]):
        answer = service.ask("GET", "/resource_providers", token)
        assert read_refusal(answer) == NOBODY
        assert answer.headers["WWW-Authenticate"] == f'Keystone uri="{keystone.url}"'


def test_a_cached_token_is_valid_until_it_expires(keystone: Keystone, service: KeystonePlacement) -> None:
    token = keystone.identity.token(CALLERS["admin"], 4)
    assert service.status(token) == 200
    asked = keystone.validations()
    wait_for(lambda: service.status(token) == 401)
    assert keystone.validations() == asked


def test_an_expired_token_is_valid_only_with_the_token_of_a_service(
    keystone: Keystone, service: KeystonePlacement
) -> None:
    token = keystone.identity.token(CALLERS["admin"], 1)
    time.sleep(2)
    assert service.status(token) == 401
    assert service.status(token, X_Service_Token=keystone.identity.token(CALLERS["service"])) == 200
    assert service.status(token, X_Service_Token=keystone.identity.token(CALLERS["admin"])) == 401
    assert service.status(token, X_Service_Token="gAAAAAB-no-token") == 401


def test_a_service_token_needs_the_service_role_unless_the_option_is_off(
    keystone: Keystone, service: KeystonePlacement, tmp_path
) -> None:
    mine, of_a_reader = keystone.identity.token(CALLERS["admin"]), keystone.identity.token(CALLERS["reader"])
    assert service.status(mine, X_Service_Token=of_a_reader) == 401
    assert service.status(mine, X_Service_Token=keystone.identity.token(CALLERS["service"])) == 200
    sections = authtoken(keystone) + "service_token_roles_required = false\n"
    with placement(tmp_path, sections) as lenient:
        assert lenient.status(mine, X_Service_Token=of_a_reader) == 200
        assert lenient.status(mine, X_Service_Token="gAAAAAB-no-token") == 401


def test_the_roles_of_a_service_token_are_not_those_of_the_user(
    keystone: Keystone, service: KeystonePlacement
) -> None:
    assert (
        service.status(
            keystone.identity.token(CALLERS["reader"]),
            X_Service_Token=keystone.identity.token(CALLERS["service"]),
        )
        == 403
    )


def test_a_restricted_token_is_valid_only_for_its_access_rules(
    keystone: Keystone, service: KeystonePlacement
) -> None:
    rule = ("placement", "GET", "/resource_providers")
    # Keystone accepts rules only for services in its catalog
    keystone.identity.service("placement", "placement", service.base)
    token = keystone.identity.restricted_token(CALLERS["admin"], rule)
    assert service.status(token) == 200
    assert service.ask("GET", "/traits", token).status_code == 401
    assert service.ask("POST", "/resource_providers", token, {"name": "h"}).status_code == 401


def test_a_revoked_token_is_valid_for_token_cache_time_at_most(
    keystone: Keystone, service: KeystonePlacement, tmp_path
):
    with placement(tmp_path, authtoken(keystone) + "token_cache_time = 2\n") as forgetful:
        token = keystone.identity.token(CALLERS["admin"])
        assert [service.status(token), forgetful.status(token)] == [200, 200]
        keystone.identity.revoke(token)
        assert service.status(token) == 200  # for 300 seconds
        wait_for(lambda: forgetful.status(token) == 401)


def test_without_a_cache_a_revoked_token_is_refused_at_once(keystone: Keystone, tmp_path) -> None:
    with placement(tmp_path, authtoken(keystone) + "token_cache_time = -1\n") as running:
        token, asked = keystone.identity.token(CALLERS["admin"]), keystone.validations()
        assert [running.status(token) for _ in range(3)] == [200, 200, 200]
        assert keystone.validations() == asked + 3
        keystone.identity.revoke(token)
        assert running.status(token) == 401


def test_each_worker_validates_a_token_once(keystone: Keystone, tmp_path) -> None:
    with placement(tmp_path, authtoken(keystone), workers=2) as running:
        token, asked = keystone.identity.token(CALLERS["admin"]), keystone.validations()
        assert {running.status(token) for _ in range(60)} == {200}
        assert 1 <= keystone.validations() - asked <= 2


@pytest.fixture
def memcached():
    pytest.importorskip("memcache", reason="python-memcached is not installed")
    try:
        with Memcached() as running:
            yield running
    except MemcachedMissing as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("strategy", ["None", "ENCRYPT"])
def test_workers_with_memcached_validate_a_token_once_together(
    keystone: Keystone, memcached, tmp_path, strategy
) -> None:
    sections = authtoken(keystone) + (
        f"memcached_servers = {memcached.address}\n"
        f"memcache_security_strategy = {strategy}\nmemcache_secret_key = kept-from-others\n"
    )
    with placement(tmp_path, sections, workers=2) as running:
        token, asked = keystone.identity.token(CALLERS["admin"]), keystone.validations()
        assert {running.status(token) for _ in range(40)} == {200}
        assert keystone.validations() == asked + 1
        remembered = memcached.content()
        assert (b"a-admin" in remembered) == (strategy == "None")
        assert strategy == "None" or token.encode() not in remembered
        memcached.stop()
        assert {running.status(token) for _ in range(10)} == {200}
        assert keystone.validations() > asked + 1
        assert running.status("gAAAAAB-no-token") == 401
