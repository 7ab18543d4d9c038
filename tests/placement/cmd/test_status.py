"""Tests of ``placement-status upgrade_schema check``: it prints a row for each check, and the worst result
decides the exit status.
"""

import functools
import json
import os

import pytest

from placement.cmd.status import main
from placement.db import engine, migration, sqlite_file
from tests.placement.sql import execute_sql
from tests.ports import free_port

NOBODY = "00000000-0000-0000-0000-000000000000"
SUCCESS, WARNING, FAILURE = range(3)
ALL_CHECKS = (
    "Configuration",
    "Database",
    "Schema",
    "Missing Root Provider IDs",
    "Missing Consumers",
    "Incomplete Consumers",
    "Reservation Limits",
    "Keystone",
    "Policy File JSON to YAML Migration",
)


@pytest.fixture
def url(sqlite_url):
    return sqlite_url


@pytest.fixture
def conf_file(tmp_path, url):
    file = tmp_path / "placement.conf"
    file.write_text(f"[placement_database]\nconnection = {url}\n")
    return file


@pytest.fixture
def keystone(monkeypatch):
    """A Keystone that answers."""
    monkeypatch.setattr("placement.api.identity.keystone_obstacle", lambda conf: None)


@pytest.fixture
def check(conf_file, keystone, capsys):
    """A function that runs the checks; it returns the exit status, and the result and details of each
    check.
    """

    def run():
        status = main(["--config-file", str(conf_file), "upgrade", "check", "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return status, {each["check"]: (each["result"], each["details"]) for each in checks}

    return run


@pytest.fixture
def execute(url):
    return functools.partial(execute_sql, url)


def test_a_sound_database_passes_every_check(check):
    assert check() == (SUCCESS, dict.fromkeys(ALL_CHECKS, (SUCCESS, None)))


def test_the_table_is_that_of_openstacks_commands(conf_file, keystone, capsys):
    assert main(["--config-file", str(conf_file), "upgrade", "check"]) == SUCCESS
    lines = [line.strip("| ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[:4] == ["Upgrade Check Results", "Check: Configuration", "Result: Success", "Details: None"]


def test_an_old_schema_is_a_failure_that_says_what_to_do(check, execute):
    execute("UPDATE alembic_version SET version_num = '0001'")
    status, results = check()
    assert status == FAILURE
    assert results["Database"] == (SUCCESS, None)
    assert results["Schema"][0] == FAILURE
    assert "run 'placement-manage db sync'" in results["Schema"][1]


def test_a_database_with_two_revisions_is_a_failure_that_says_what_to_do(check, execute):
    execute("INSERT INTO alembic_version VALUES ('a082b8bb98d0')")
    status, results = check()
    assert status == FAILURE
    assert "alembic_version of the database has 2 rows" in results["Schema"][1]
    assert "Restore a backup" in results["Schema"][1]


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/placement.sqlite",
        "sqlite:/x",
        "postgresql+psycopg://someone@127.0.0.1:9/placement",
    ],
)
def test_a_database_that_cannot_be_reached_is_a_failure(check, url):
    status, results = check()
    assert status == FAILURE
    assert results["Database"][0] == FAILURE
    assert results["Missing Consumers"][1] == (
        "Not checked: the database cannot be used yet: correct the problem above, and run the check again."
    )
    assert results["Policy File JSON to YAML Migration"][0] == SUCCESS


@pytest.mark.parametrize("url", ["sqlite:/x", "mysql+nodriver://host/placement"])
def test_a_connection_that_cannot_be_used_has_the_error_of_placement_api(check, url):
    with pytest.raises(ValueError, match=r"^\[placement_database\] connection cannot be used: ") as error:
        engine.check_url(url)
    assert check()[1]["Database"] == (FAILURE, str(error.value))


def test_a_database_that_is_not_there_is_a_failure_and_is_not_made(check, tmp_path):
    file = tmp_path / "placement.sqlite"
    file.unlink()
    status, results = check()
    assert status == FAILURE
    assert results["Database"] == (
        FAILURE,
        f"There is no database {file}: 'placement-manage db sync' makes it, run as the service's user.",
    )
    assert not file.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is warned of others")
def test_root_is_warned_of_a_database_that_the_service_may_not_write(check, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "SERVICE_USER", "nobody")
    status, results = check()
    assert (status, results["Database"][0]) == (WARNING, WARNING)
    assert results["Database"][1].startswith("If the service runs as nobody: User nobody may not")


def add_provider(uuid, number, root):
    columns = "id, uuid, name, generation, root_id, bucket, change_seq, updated_at"
    values = f"{number}, '{uuid}', '{uuid}', 0, {root}, 1, 0, 0"
    return f"INSERT INTO resource_providers ({columns}) VALUES ({values})"


def test_wrong_roots_are_a_failure(check, execute):
    execute(add_provider("a", 1, "NULL"), add_provider("b", 2, 1))
    status, results = check()
    assert status == FAILURE
    assert results["Missing Root Provider IDs"] == (
        FAILURE,
        "1 resource providers have a wrong root or parent. 'placement-manage audit' names them; "
        "'placement-manage heal' corrects the healable ones.",
    )


def test_allocations_without_consumer_are_a_failure(check, execute):
    execute(
        add_provider("a", 1, "NULL"),
        "INSERT INTO resource_classes VALUES (1, 'VCPU', 0)",
        "INSERT INTO allocations VALUES (17, 1, 1, 4, 0)",
    )
    status, results = check()
    assert status == FAILURE
    assert results["Missing Consumers"][0] == FAILURE
    assert results["Missing Consumers"][1].startswith("1 consumers that hold allocations do not exist.")


def test_consumers_without_a_project_of_their_own_are_a_warning(check, execute):
    columns = "uuid, project_id, user_id, generation, updated_at"
    execute(
        f"INSERT INTO consumers ({columns}) VALUES ('c', '{NOBODY}', 'ann', 1, 0), ('d', 'red', 'ann', 1, 0)"
    )
    status, results = check()
    assert status == WARNING
    assert results["Incomplete Consumers"][0] == WARNING
    assert results["Incomplete Consumers"][1].startswith("1 consumers have no project or user of their own.")


def test_limits_of_unknown_resource_classes_are_a_warning(check, conf_file):
    conf_file.write_text(f"{conf_file.read_text()}[reservations]\nmax_project_amounts = VCPU:8,web/VGPUS:1\n")
    status, results = check()
    assert (status, results["Reservation Limits"]) == (
        WARNING,
        (
            WARNING,
            "[reservations] limits unknown resource classes: VGPUS. These limits have no effect until the"
            " classes exist.",
        ),
    )


def test_a_policy_file_of_json_is_a_failure(check, conf_file, tmp_path):
    policy = tmp_path / "policy.json"
    policy.write_text('{"placement:traits:list": "@"}')
    with conf_file.open("a") as file:
        file.write(f"[oslo_policy]\npolicy_file = {policy}\n")
    status, results = check()
    assert status == FAILURE
    assert "oslopolicy-convert-json-to-yaml" in results["Policy File JSON to YAML Migration"][1]


def test_an_unexpected_error_ends_with_255(check, conf_file, monkeypatch, capsys):
    def fail(url):
        raise RuntimeError("out of the blue")

    monkeypatch.setattr(migration, "version", fail)
    assert main(["--config-file", str(conf_file), "upgrade", "check"]) == 255
    assert "out of the blue" in capsys.readouterr().out


def test_an_option_with_a_wrong_value_is_a_failure(check, conf_file):
    with conf_file.open("a") as file:
        file.write("max_pool_size = many\n")
    status, results = check()
    assert status == FAILURE
    assert results["Configuration"][0] == FAILURE
    assert "max_pool_size" in results["Configuration"][1]
    assert results["Schema"] == (SUCCESS, None)


def test_a_configuration_file_that_is_not_there_is_255(conf_file, capsys):
    conf_file.unlink()
    assert main(["--config-file", str(conf_file), "upgrade", "check"]) == 255
    assert "placement.conf" in capsys.readouterr().err


LOGIN = """[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:{port}/v3
username = placement
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
"""


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("", "[keystone_authtoken] auth_type is not set"),
        (LOGIN.replace("username", "#username"), "[keystone_authtoken]: "),
        (LOGIN, "[keystone_authtoken]: Unable to establish connection to http://127.0.0.1:"),
    ],
)
def test_a_keystone_that_cannot_be_asked_is_a_warning(conf_file, url, capsys, section, complaint):
    login = section.format(port=free_port())
    conf_file.write_text(f"[placement_database]\nconnection = {url}\n{login}")
    assert main(["--config-file", str(conf_file), "upgrade", "check", "--json"]) == WARNING
    out, errors = capsys.readouterr()
    assert errors == ""
    (warning,) = [each for each in json.loads(out)["checks"] if each["result"] != SUCCESS]
    assert (warning["check"], warning["result"]) == ("Keystone", WARNING)
    assert warning["details"].startswith(complaint)
    assert warning["details"].endswith("the service cannot validate tokens.")


def test_a_login_with_which_the_service_cannot_start_is_one_failure(conf_file, capsys):
    with conf_file.open("a") as file:
        file.write("[keystone_authtoken]\nauth_type = passwort\n")
    assert main(["--config-file", str(conf_file), "upgrade", "check", "--json"]) == FAILURE
    out, errors = capsys.readouterr()
    assert errors == ""
    (failure,) = [each for each in json.loads(out)["checks"] if each["result"] != SUCCESS]
    assert failure["check"] == "Configuration"
    assert failure["details"].startswith("[keystone_authtoken] cannot be used: ")


def test_a_console_without_what_signing_in_needs_is_a_failure(check, conf_file, monkeypatch):
    monkeypatch.setattr("placement_extras.console.find_spec", lambda name: None)
    with conf_file.open("a") as file:
        file.write("[console]\nenabled = true\n")
    status, results = check()
    assert (status, results["Configuration"][0]) == (FAILURE, FAILURE)
    assert results["Configuration"][1].startswith(
        "[console] enabled, where visitors sign in, needs cryptography, which is not installed"
    )


def test_a_policy_file_that_cannot_be_used_is_a_failure(check, conf_file, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("{")
    with conf_file.open("a") as file:
        file.write(f"[oslo_policy]\npolicy_file = {policy}\n")
    status, results = check()
    assert (status, results["Configuration"][0]) == (FAILURE, FAILURE)
    assert results["Configuration"][1].startswith(f"Policy files {policy} cannot be used: ")


def test_requests_without_authentication_are_a_warning(check, conf_file):
    with conf_file.open("a") as file:
        file.write("[api]\nauth_strategy = noauth2\n")
    status, results = check()
    assert (status, results["Keystone"][0]) == (WARNING, WARNING)
    assert results["Keystone"][1].startswith("[api] auth_strategy is noauth2: requests are not authenticated")


def test_a_misspelt_option_is_a_warning_and_one_of_openstack_placement_is_none(check, conf_file):
    text = conf_file.read_text()
    conf_file.write_text(text.replace("[placement_database]", "[placement_database]\nmax_retries = 3"))
    assert check()[0] == SUCCESS
    conf_file.write_text(f"{text}conection = sqlite://\n[plcement]\nx = 1\n")
    status, results = check()
    assert (status, results["Configuration"][0]) == (WARNING, WARNING)
    told = results["Configuration"][1]
    assert "[placement_database] conection: there is no such option; did you mean connection?" in told
    assert "there is no section [plcement]; did you mean [placement]?" in told


def test_before_the_migration_only_what_needs_it_fails_and_afterwards_nothing(
    check, conf_file, tmp_path, url
):
    old = f"sqlite:///{tmp_path}/old.sqlite"
    migration.upgrade_schema(old, "0002")
    conf_file.write_text(conf_file.read_text().replace(url, old))
    status, results = check()
    assert status == FAILURE
    told = {name: details for name, (result, details) in results.items() if result != SUCCESS}
    assert set(told) == {"Schema", "Missing Root Provider IDs", "Missing Consumers", "Incomplete Consumers"}
    assert told.pop("Schema").endswith("run 'placement-manage db sync'.")
    assert all(
        details.endswith("correct the problem above, and run the check again.") for details in told.values()
    )
    migration.upgrade_schema(old)
    assert check()[0] == SUCCESS
