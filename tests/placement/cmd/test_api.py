"""Tests of ``placement-api`` and ``placement.wsgi.api:application``, each in a process of its own."""

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from placement.cmd import api, manage, status
from placement.cmd.common import check_bind
from placement.conf import installed_version, new_config
from placement_extras.shadow import command
from tests.ports import free_port
from tests.waits import wait_for

ROOT = Path(__file__).parents[3]


@pytest.fixture
def config_file(tmp_path):
    file = tmp_path / "placement.conf"
    file.write_text(
        "[api]\nauth_strategy = noauth2\n"
        f"[placement_database]\nconnection = sqlite:///{tmp_path}/placement.sqlite\nsync_on_startup = true\n"
    )
    return file


@pytest.fixture
def environ(tmp_path):
    return {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


def test_two_workers_listen_on_the_loopback_address_by_default():
    conf = new_config(config_files=[], cli_opts=api.CLI_OPTIONS)
    assert (conf.bind, conf.workers, conf.threads) == ("127.0.0.1:8778", 2, 4)


def test_the_application_is_made_in_the_workers_and_requests_are_long_enough():
    settings = api.ApiServer(new_config(["--workers", "3"], config_files=[], cli_opts=api.CLI_OPTIONS)).cfg
    assert (settings.workers, settings.preload_app, settings.limit_request_line) == (3, False, 8190)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("auth_type = passwort", "[keystone_authtoken] cannot be used: "),
        ("memcache_security_strategy = ENCRYPT", "[keystone_authtoken] cannot be used: memcache_secret_key"),
        ("memcached_servers = 127.0.0.1", "[keystone_authtoken] memcached_servers needs python-memcached"),
    ],
)
def test_a_login_at_keystone_that_cannot_be_used_is_one_line_on_stderr(tmp_path, option, complaint):
    (tmp_path / "placement.conf").write_text(f"[keystone_authtoken]\n{option}\n")
    # an environment in which python-memcached is not installed
    program = (
        "import sys; sys.modules['memcache'] = None; from placement.cmd.api import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--config-file", str(tmp_path / "placement.conf")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert f"placement-api: {complaint}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[api]\nauth_strategy = none\n", "auth_strategy"),
        ("[placement]\nmax_allocation_candidates = many\n", "max_allocation_candidates"),
        ("not an option\n", "placement.conf:1"),
    ],
)
def test_a_wrong_configuration_is_one_line_on_stderr(tmp_path, capsys, text, complaint):
    (tmp_path / "placement.conf").write_text(text)
    assert api.main(["--config-file", str(tmp_path / "placement.conf")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("placement-api: ")
    assert complaint in err


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nonsense", "Could not parse SQLAlchemy URL"),
        ("oracle9://db/placement", "sqlalchemy.dialects:oracle9"),
        ("postgresql+psycopg2://db/placement", "write postgresql+psycopg:// in place of postgresql+psycopg2"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line_on_stderr(config_file, capsys, url, complaint):
    config_file.write_text(f"[api]\nauth_strategy = noauth2\n[placement_database]\nconnection = {url}\n")
    assert api.main(["--config-file", str(config_file), "--bind", f"127.0.0.1:{free_port()}"]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("placement-api: [placement_database] connection cannot be used: ")
    assert complaint in told


def test_a_policy_file_that_cannot_be_used_is_one_line_on_stderr(config_file, tmp_path, capsys):
    policy = tmp_path / "policy.yaml"
    policy.write_text("{")
    with config_file.open("a") as file:
        file.write(f"[oslo_policy]\npolicy_file = {policy}\n")
    assert api.main(["--config-file", str(config_file), "--bind", f"127.0.0.1:{free_port()}"]) == 1
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("placement-api: ")]
    assert told.startswith(f"placement-api: Policy files {policy} cannot be used: ")


def test_a_console_without_what_signing_in_needs_is_one_line_on_stderr(config_file, capsys, monkeypatch):
    monkeypatch.setattr("placement_extras.console.find_spec", lambda name: None)
    config_file.write_text(
        "[console]\nenabled = true\n[placement_database]\nconnection = sqlite://\n[keystone_authtoken]\n"
        "auth_type = password\nauth_url = http://127.0.0.1:9/v3\nusername = placement\npassword = secret\n"
    )
    assert api.main(["--config-file", str(config_file), "--bind", f"127.0.0.1:{free_port()}"]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("placement-api: [console] enabled, where visitors sign in, needs cryptography")
    assert "with its extra console: pip install '/PATH/TO/placement_compute-VERSION" in told


@pytest.mark.parametrize("program", [api, manage, command, status], ids=lambda each: each.__name__)
def test_every_program_tells_its_version(program, capsys):
    with contextlib.suppress(SystemExit):
        assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{installed_version()}\n"


def test_a_missing_configuration_file_is_named(capsys):
    assert api.main(["--config-file", "/nowhere/placement.conf"]) == 1
    assert "/nowhere/placement.conf" in capsys.readouterr().err


def taken_port(folder):
    holder = socket.create_server(("127.0.0.1", 0))
    return holder, f"127.0.0.1:{holder.getsockname()[1]}"


def socket_in_no_folder(folder):
    return None, f"unix:{folder}/none/placement.sock"


def file_that_is_no_socket(folder):
    (folder / "placement.sock").write_text("mine")
    return None, f"unix:{folder}/placement.sock"


@pytest.mark.parametrize(
    ("place", "reason", "remedy"),
    [
        (taken_port, "Address already in use", "ss -ltnp shows it): end it, or choose another port"),
        (lambda _: (None, "127.0.0.1:http"), "'http' is not a valid port", "Give ADDRESS:PORT, such as"),
        (
            lambda _: (None, "127.0.0.1"),
            "'' is not a valid port",
            "Give ADDRESS:PORT, such as 127.0.0.1",
        ),
        (lambda _: (None, "[::1]"), "'' is not a valid port", "Give ADDRESS:PORT, such as 127.0.0.1"),
        (lambda _: (None, "127.0.0.1:99999"), "0-65535", "choose an address of this machine"),
        (lambda _: (None, "192.0.2.1:8778"), "Cannot assign requested", "choose an address of this machine"),
        (socket_in_no_folder, "/none is not a folder", "unix: and a path in a folder"),
        (file_that_is_no_socket, "placement.sock exists and is not a socket", "unix: and a path"),
    ],
)
def test_where_it_cannot_listen_is_told_with_option_and_remedy(
    config_file, tmp_path, capsys, place, reason, remedy
):
    holder, bind = place(tmp_path)
    with holder or contextlib.nullcontext():
        assert api.main(["--config-file", str(config_file), "--bind", bind]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"placement-api: --bind {bind}: ")
    assert reason in told
    assert remedy in told


def test_sockets_that_are_handed_over_are_not_asked_for(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        bind = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(ValueError, match="already in use"):
            check_bind(bind)
        monkeypatch.setenv("GUNICORN_FD", "5")
        check_bind(bind)


@pytest.mark.slow
def test_the_server_answers_logs_and_stops_when_it_is_told(config_file, environ):
    port = free_port()
    program = [sys.executable, "-m", "placement.cmd.api", "--config-file", str(config_file)]
    server = subprocess.Popen(
        [*program, "--bind", f"127.0.0.1:{port}"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        answer, body, request_id = get(port, "/", server)
        assert (answer, orjson.loads(body)["versions"][0]["id"]) == (200, "v1.0")
        assert get(port, "/resource_providers", server)[0] == 401
        assert get(port, "/resource_providers", server, {"X-Auth-Token": "admin"})[0] == 200
        server.send_signal(signal.SIGTERM)
        log = server.communicate(timeout=60)[0]
    finally:
        server.kill()
    assert server.returncode == 0
    assert re.search(
        rf'INFO placement.requestlog \[None {request_id} .*\] 127.0.0.1 "GET /" status: 200 len: \d+', log
    )
    assert re.search(r"INFO gunicorn.error \[-\] Booting worker", log)


def get(port, path, server, headers=None):
    """Send a request as soon as the server listens; return status, body and request id of the answer."""

    def ask():
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                connection.request("GET", path, headers=headers or {})
                answer = connection.getresponse()
                return answer.status, answer.read(), answer.headers["x-openstack-request-id"]
        except ConnectionError:
            assert server.poll() is None, server.communicate()[0]
            return None

    return wait_for(ask, f"an answer to GET {path}")


@pytest.mark.slow
def test_other_web_servers_find_the_application_in_the_module(config_file, environ):
    program = (
        "import placement.wsgi.api as module\n"
        "from webtest import TestApp\n"
        "print(TestApp(vars(module)['application']).get('/').json['versions'][0]['id'])\n"
    )
    environ["OS_PLACEMENT_CONFIG_DIR"] = str(config_file.parent)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "v1.0" in done.stdout.splitlines()
    assert "INFO placement.requestlog" in done.stdout
