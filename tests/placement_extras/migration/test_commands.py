"""Tests of ``placement-manage`` and ``placement-status`` on a database of OpenStack Placement."""

import json

import pytest
import sqlalchemy as sa

from placement.cmd import manage as command
from placement.cmd import status
from placement.db import adoption, migration
from placement_extras.migration import abandonment
from tests.placement.running import Admin, application
from tests.placement_extras.migration import reference_world as world

LAST = adoption.REVISIONS[-1]
ADVICE = "Stop that service, then run 'placement-manage db adopt'"


@pytest.fixture
def stock(tmp_path):
    database = world.ReferenceDatabase(f"sqlite:///{tmp_path}/reference.sqlite")
    database.fill()
    database.at_revision(LAST)
    return database.url


@pytest.fixture
def manage(tmp_path, stock, capsys):
    """Run the command; return its exit status, output and errors."""
    file = tmp_path / "placement.conf"

    def run(*arguments, options=""):
        file.write_text(f"[placement_database]\nconnection = {stock}\n{options}\n")
        result = command.main(["--config-file", str(file), *arguments])
        return result, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    "arguments", [["db", "sync"], ["db", "online_data_migrations"], ["db", "stamp", "head"], ["audit"]]
)
def test_commands_that_need_our_database_say_how_to_adopt_it(manage, stock, arguments):
    result, _, errors = manage(*arguments)
    assert result == 1
    assert f"(revision {LAST})" in errors
    assert ADVICE in errors
    assert "adopt = true" in errors
    assert migration.version(stock) == LAST


def test_the_version_is_shown_with_advice(manage):
    result, output, errors = manage("db", "version")
    assert (result, output) == (0, f"{LAST}\n")
    assert ADVICE in errors


def test_the_version_of_a_half_adopted_database_advises_to_go_on(manage, stock):
    engine = sa.create_engine(stock, poolclass=sa.NullPool)
    with engine.begin() as conn:
        adoption.write(conn, adoption.AdoptionRecord(adoption.AdoptionStage.ADOPTING, LAST))
        conn.exec_driver_sql("ALTER TABLE alembic_version RENAME TO stock_alembic_version")
    result, output, errors = manage("db", "version")
    assert (result, output) == (0, "none\n")
    assert "'placement-manage db adopt' continues it" in errors


def test_the_upgrade_check_names_the_command_that_helps(manage, tmp_path, capsys):
    manage("db", "version")
    assert status.main(["--config-file", str(tmp_path / "placement.conf"), "upgrade", "check", "--json"]) == 2
    checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert ADVICE in checks["Schema"]["details"]


def test_a_dry_run_changes_nothing(manage, stock):
    result, output, _ = manage("db", "adopt", "--dry-run")
    assert result == 0
    assert "The database can be adopted." in output
    assert migration.version(stock) == LAST


def test_a_database_is_adopted_and_given_back_by_commands(manage, stock):
    result, output, _ = manage("db", "adopt")
    assert result == 0
    assert "'placement-manage db abandon' goes back" in output
    assert manage("db", "adopt")[:2] == (0, "The database is adopted already.\n")
    assert manage("db", "version") == (0, f"{migration.newest_revision()}\n", "")
    admin = Admin(application(stock))
    assert admin("PUT", "/traits/CUSTOM_LATER").status_code == 201
    result, _, errors = manage("db", "abandon")
    assert result == 1
    assert "trait made: CUSTOM_LATER" in errors
    result, output, _ = manage("db", "abandon", "--carry-back")
    assert result == 0
    assert "All 1 are carried back." in output
    assert manage("db", "version")[1] == f"{LAST}\n"
    result, _, errors = manage("db", "abandon")
    assert result == 1
    assert "nothing to go back to" in errors


def test_a_second_run_without_an_option_says_that_the_first_one_has_dropped_the_changes(manage, monkeypatch):
    outcome = abandonment.AbandonOutcome(("trait made: CUSTOM_LATER",), is_discarded=True)
    monkeypatch.setattr(abandonment, "abandon_adoption", lambda *_: outcome)
    result, output, _ = manage("db", "abandon")
    assert result == 0
    assert "All 1 are dropped." in output


@pytest.mark.parametrize("again", [["db", "sync"], ["db", "adopt"]])
def test_sync_adopts_with_the_option(manage, again):
    result, output, _ = manage("db", "sync", options="adopt = true")
    assert result == 0
    assert "The database is adopted." in output
    assert f"The database is at revision {migration.newest_revision()}." in output
    assert manage(*again, options="adopt = true")[0] == 0


def test_a_service_adopts_at_its_start_only_with_the_option(stock):
    closed = Admin(application(stock, placement_database={"sync_on_startup": True}))
    assert closed("GET", "/resource_providers").status_code == 503
    assert migration.version(stock) == LAST
    admin = Admin(application(stock, placement_database={"sync_on_startup": True, "adopt": True}))
    held = admin("GET", f"/allocations/{world.SERVER}").json
    assert held["consumer_generation"] == 5


def test_an_unknown_revision_is_refused(manage):
    assert manage("db", "adopt")[0] == 0
    result, _, errors = manage("db", "stamp", "0000")
    assert result == 1
    assert "0000" in errors


def test_the_old_tables_are_removed_after_confirmation_and_then_no_abandonment_is_possible(manage, stock):
    assert manage("db", "adopt")[0] == 0
    result, output, errors = manage("db", "drop-stock")
    assert (result, output) == (1, "")
    assert "  stock_allocations: 7 rows\n" in errors
    assert "'placement-manage db abandon' cannot go back" in errors
    assert "'--yes' removes them" in errors
    result, output, _ = manage("db", "drop-stock", "--yes")
    assert result == 0
    assert output.startswith("13 tables are removed: stock_alembic_version, stock_allocations, ")
    result, _, errors = manage("db", "abandon", "--discard")
    assert result == 1
    assert "its old tables were removed with 'placement-manage db drop-stock'" in errors
    assert manage("db", "drop-stock", "--yes")[0] == 1
    assert manage("db", "version") == (0, f"{migration.newest_revision()}\n", "")
    held = Admin(application(stock))("GET", f"/allocations/{world.SERVER}").json
    assert held["consumer_generation"] == 5


def test_a_database_without_an_adoption_has_no_tables_to_remove(manage, stock):
    result, _, errors = manage("db", "drop-stock", "--yes")
    assert result == 1
    assert "was not adopted from OpenStack Placement" in errors
    assert migration.version(stock) == LAST
