"""Tests of the command ``placement-manage``: its exit status and output."""

import io
import json

import pytest

from placement.cmd.manage import main
from placement.db import migration
from tests.placement.running import Admin, application
from tests.placement.sql import execute_sql, read_scalar
from tests.placement_extras.migration import reference_world as world


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/placement.sqlite"


@pytest.fixture
def manage(tmp_path, url, capsys):
    """A function that runs the command and returns exit status, output and errors."""
    file = tmp_path / "placement.conf"
    file.write_text(f"[placement_database]\nconnection = {url}\n")

    def run(*arguments):
        status = main(["--config-file", str(file), *arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def synced(manage, sqlite_url):
    """The same function, with a migrated database at the place where the command looks for a database."""
    return manage


@pytest.fixture
def source(tmp_path):
    database = world.ReferenceDatabase(f"sqlite:///{tmp_path}/reference.sqlite")
    database.fill()
    return database.url


def add_empty_consumer(url):
    columns = "uuid, project_id, user_id, generation, updated_at"
    execute_sql(url, f"INSERT INTO consumers ({columns}) VALUES ('{world.EMPTY}', 'red', 'ann', 1, 0)")


def test_sync_then_version(manage):
    assert manage("db", "version") == (0, "none: run 'placement-manage db sync'\n", "")
    newest = migration.newest_revision()
    assert manage("db", "sync")[:2] == (0, f"The database is at revision {newest}.\n")
    assert manage("db", "version")[:2] == (0, f"{newest}\n")


@pytest.mark.parametrize(("before", "is_told"), [("0002", True), ("0004", False)])
def test_sync_tells_where_there_is_no_way_back_without_the_backup(manage, url, before, is_told):
    migration.upgrade_schema(url, before)
    status, output, errors = manage("db", "sync")
    assert (status, output) == (0, f"The database is at revision {migration.newest_revision()}.\n")
    assert ("Releases with revision 0002 accept no other revision" in errors) == is_told
    assert ("restore the backup" in errors) == is_told
    assert "restore" not in manage("db", "sync")[2]


def test_online_data_migrations_are_done_only_on_the_newest_schema(manage, url):
    status, _, errors = manage("db", "online_data_migrations")
    assert status == 1
    assert "run 'placement-manage db sync'" in errors
    migration.upgrade_schema(url)
    assert manage("db", "online_data_migrations")[:2] == (0, "No data need to be migrated.\n")
    assert manage("db", "online_data_migrations", "--max-count", "50")[0] == 0
    assert manage("db", "online_data_migrations", "--max-count", "0")[0] == 127


@pytest.mark.parametrize(
    "command", [["audit"], ["heal"], ["db", "renew-epoch"], ["import", "sqlite:///nowhere"]], ids=" ".join
)
def test_a_database_without_schema_is_named(manage, command):
    status, _, errors = manage(*command)
    assert status == 1
    assert "The database has no schema yet" in errors


def test_a_new_epoch_shows_running_workers_what_was_changed_by_hand(synced, url):
    worker = Admin(application(url))
    made = worker("POST", "/resource_providers", json={"name": "host"}).json

    def name():
        return worker("GET", f"/resource_providers/{made['uuid']}").json["name"]

    assert name() == "host"
    execute_sql(url, "UPDATE resource_providers SET name = 'renamed'")
    assert name() == "host"
    assert synced("db", "renew-epoch")[:2] == (
        0,
        "Every worker reads everything again before its next answer.\n",
    )
    assert name() == "renamed"


def test_an_import_shows_what_arrived(synced, source):
    status, output, _ = synced("import", source)
    assert status == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines() if "|" in line]
    assert rows[0] == ["Content", "Rows there", "Rows here", "Sum there", "Sum here"]
    assert ["resource providers (sum of generations)", "5", "5", "23", "23"] in rows
    assert ["allocations of DISK_GB (sum used)", "2", "2", "25", "25"] in rows
    assert ["consumers (sum of generations)", "4", "4", "8", "8"] in rows
    assert output.endswith("All is imported.\n")
    assert synced("audit")[0] == 0


def test_a_second_import_finds_all_there(synced, source):
    assert synced("import", source)[0] == 0
    status, output, _ = synced("import", source)
    assert (status, output.splitlines()[-1]) == (0, "All of it was there already.")


def test_a_dry_run_of_an_import_writes_nothing(synced, source, url):
    status, output, _ = synced("import", "--dry-run", source)
    assert status == 0
    assert f"root provider set right: numa ({world.NUMA})" in output
    assert output.endswith("It can be imported.\n")
    assert read_scalar(url, "SELECT count(*) FROM resource_providers") == 0


def test_the_url_of_the_source_comes_from_a_file_or_standard_input(synced, source, tmp_path, monkeypatch):
    file = tmp_path / "source"
    file.write_text(f"{source}\n")
    assert synced("import", "--dry-run", "--source-file", str(file))[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{source}\n"))
    status, output, errors = synced("import", "--source-file", "-")
    assert (status, errors) == (0, "")
    assert output.endswith("All is imported.\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("", "has to hold exactly one URL"),
        ("sqlite:// x", "has to hold exactly one URL"),
        ("\0", ""),
    ],
)
def test_a_file_without_the_url_of_the_source_is_named(synced, tmp_path, content, said):
    file = tmp_path / "source"
    if content is not None:
        file.write_text(content)
    status, _, errors = synced("import", "--source-file", str(file))
    assert status == 1
    assert errors.startswith("placement-manage: ")
    assert said in errors


@pytest.mark.parametrize(
    "address", ["placement:hidden@127.0.0.1:1/placement", "127.0.0.1:1/placement?password=hidden"]
)
def test_a_password_among_the_arguments_is_warned_of(synced, address):
    status, _, errors = synced("import", f"mysql+pymysql://{address}")
    assert status == 1
    assert "warning: SOURCE_URL holds a password" in errors
    assert "--source-file" in errors
    assert "hidden" not in errors


def test_a_url_without_a_password_is_not_warned_of(synced):
    assert "warning" not in synced("import", "mysql+pymysql://placement@127.0.0.1:1/placement")[2]


def test_a_refused_import_says_why(synced, source, url):
    add_empty_consumer(url)
    status, _, errors = synced("import", source)
    assert status == 1
    assert errors.startswith("placement-manage: The database to import into is not empty")


def test_audit_is_0_for_nothing_and_3_for_something(synced, url):
    assert synced("audit")[:2] == (0, "Nothing is wrong.\n")
    add_empty_consumer(url)
    status, output, _ = synced("audit")
    assert status == 3
    assert f"| consumer without allocations | {world.EMPTY} | of project red | yes" in output


def test_heal_repairs_and_audit_is_content(synced, url):
    add_empty_consumer(url)
    status, output, _ = synced("heal", "--dry-run", "-f", "json")
    expected = {
        "problem": "consumer without allocations",
        "subject": world.EMPTY,
        "detail": "of project red",
        "healable": True,
    }
    assert (status, json.loads(output)) == (0, {"repaired": [expected], "remaining": []})
    assert json.loads(synced("audit", "-f", "json")[1]) == {"findings": [expected]}
    status, output, _ = synced("heal")
    assert status == 0
    assert world.EMPTY in output.split("Remains:")[0]
    assert synced("audit")[0] == 0


def test_heal_is_3_when_something_remains(synced, source, url):
    assert synced("import", source)[0] == 0
    execute_sql(url, "UPDATE inventories SET total = 5, allocation_ratio = 1 WHERE total = 16")
    status, output, _ = synced("heal")
    assert status == 3
    assert "VCPU: 6 used of 5" in output.split("Remains:")[1]


@pytest.mark.parametrize("url", ["nonsense", "strange://host/placement", "mysql+nodriver://host/placement"])
def test_a_connection_that_cannot_be_used_is_named(manage, url):
    status, _, errors = manage("audit")
    assert status == 1
    assert "[placement_database] connection cannot be used" in errors


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        (
            "postgresql+pg8000://host/placement",
            "write postgresql+psycopg:// in place of postgresql+pg8000://",
        ),
        ("mysql+cymysql://host/placement", "write mysql+pymysql:// in place of mysql+cymysql://"),
    ],
)
def test_a_driver_of_the_old_service_that_is_not_installed_is_named_with_the_one_that_is(manage, url, remedy):
    status, _, errors = manage("db", "sync")
    assert status == 1
    assert "[placement_database] connection cannot be used: No module named" in errors
    assert remedy in errors


def test_a_configuration_file_that_is_not_there_is_named(capsys):
    assert main(["--config-file", "/nowhere/placement.conf", "audit"]) == 1
    assert "/nowhere/placement.conf" in capsys.readouterr().err
