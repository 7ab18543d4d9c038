"""Tests of all layers in front of the handlers together."""

import pytest

from placement.api.middleware import add_layers

ORIGIN = "http://dashboard.example.com"
TOKEN = {"X-Auth-Token": "ann"}


@pytest.fixture
def client(handlers, conf, client_of):
    """A function that makes a client of the service, with these options (``group_name``)."""

    def client(**overrides):
        for option, value in overrides.items():
            group, name = option.split("__")
            conf.set_override(name, value, group=group)
        return client_of(add_layers(handlers, conf))

    return client


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_the_health_check_needs_no_token_and_reaches_no_handler(client, handlers, method):
    answer = client().request("/healthcheck", method=method)
    assert answer.status_int == (204 if method == "HEAD" else 200)
    assert handlers.callers == []


def test_the_health_check_asks_the_backends_that_are_configured(client, conf, tmp_path):
    (tmp_path / "down").touch()
    add_layers(None, conf)  # makes the options of the health check known
    conf.register_opts(_disable_by_file(), group="healthcheck")
    api = client(
        healthcheck__backends=["disable_by_file"], healthcheck__disable_by_file_path=str(tmp_path / "down")
    )
    assert "DISABLED BY FILE" in api.get("/healthcheck", status=503).text
    (tmp_path / "down").unlink()
    api.get("/healthcheck", status=200)


def _disable_by_file():
    from oslo_middleware.healthcheck.opts import DISABLE_BY_FILE_OPTS

    return DISABLE_BY_FILE_OPTS


def test_an_origin_is_ignored_without_cors_options(client, handlers):
    answer = client().get("/traits", headers={**TOKEN, "Origin": ORIGIN})
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert len(handlers.callers) == 1


def test_an_allowed_origin_may_read_the_answer(client):
    answer = client(cors__allowed_origin=[ORIGIN]).get("/traits", headers={**TOKEN, "Origin": ORIGIN})
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert answer.headers["Access-Control-Expose-Headers"] == "X-Openstack-Request-Id,OpenStack-API-Version"
    assert answer.headers["x-openstack-request-id"].startswith("req-")


def test_an_allowed_origin_may_read_why_it_was_refused(client):
    answer = client(cors__allowed_origin=[ORIGIN]).get("/traits", headers={"Origin": ORIGIN}, status=401)
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN


def test_another_origin_may_not(client):
    answer = client(cors__allowed_origin=[ORIGIN]).get(
        "/traits", headers={**TOKEN, "Origin": "http://evil.example.com"}
    )
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_preflight_request_needs_no_token(client):
    answer = client(cors__allowed_origin=[ORIGIN]).options(
        "/traits",
        headers={
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "PUT",
            "Access-Control-Request-Headers": "openstack-api-version,x-auth-token",
        },
        status=200,
    )
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert answer.headers["Access-Control-Allow-Methods"] == "PUT"
    assert answer.headers["Access-Control-Allow-Headers"] == "openstack-api-version,x-auth-token"


@pytest.mark.parametrize(("enabled", "logged"), [(True, "192.0.2.9"), (False, "127.0.0.1")])
def test_the_log_shows_the_client_behind_a_proxy_only_if_proxies_are_believed(
    client, caplog, enabled, logged
):
    caplog.set_level("INFO", logger="placement.requestlog")
    client(oslo_middleware__enable_proxy_headers_parsing=enabled).get(
        "/traits",
        headers={**TOKEN, "X-Forwarded-For": "192.0.2.9"},
        extra_environ={"REMOTE_ADDR": "127.0.0.1"},
    )
    assert caplog.messages[-1].startswith(f'{logged} "GET /traits" status: 200')


def test_the_health_check_is_shown_only_to_allowed_addresses(client, conf):
    add_layers(None, conf)  # makes the options of the health check known
    api = client(healthcheck__allowed_source_ranges=["10.0.0.0/8"])
    api.get("/healthcheck", extra_environ={"REMOTE_ADDR": "10.1.2.3"}, status=200)
    api.get("/healthcheck", extra_environ={"REMOTE_ADDR": "192.0.2.7"}, status=401)
