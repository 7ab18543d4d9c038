"""Tests of the tables of the console, which its own migrations make, or which an older core has made."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from placement.db import migration
from placement.db.tables import ConsumerId, all_metadata, define_table
from placement.exceptions import Unavailable
from placement_extras.console.sessions import TABLES, console_attempts, console_sessions

SESSION = ("a" * 64, "content", 4e9)
ATTEMPT = (1, "b" * 64, 3e9)


def make_as_the_core_did(url: str, revision: str) -> None:
    """Make the tables with a row each, as revision 0009 or 0010 of the core made them."""
    migration.upgrade_schema(url, revision)
    before = sa.MetaData(naming_convention=TABLES.metadata.naming_convention)
    console_sessions.to_metadata(before)
    slots = (
        sa.Column("slot", sa.SmallInteger, nullable=True),
        sa.Index("ix_console_attempts_subject_slot", "subject", "slot", unique=True),
    )
    attempts = define_table(
        "console_attempts",
        sa.Column("id", ConsumerId, primary_key=True),
        sa.Column("subject", sa.String(64), nullable=False, index=True),
        sa.Column("at", sa.Double, nullable=False, index=True),
        *(slots if revision == "0010" else ()),
        among=before,
    )
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        before.create_all(conn)
        conn.execute(sa.insert(console_sessions).values(SESSION))
        conn.execute(sa.insert(attempts).values(subject=ATTEMPT[1], at=ATTEMPT[2]))
    engine.dispose()


@pytest.mark.parametrize("revision", ["0009", "0010"])
def test_an_upgrade_takes_the_tables_that_the_core_made_with_what_they_hold(
    blank_database_url: str, revision: str
) -> None:
    make_as_the_core_did(blank_database_url, revision)
    with pytest.raises(Unavailable, match="run 'placement-manage db sync'"):
        migration.require_schema(blank_database_url)
    for _ in range(2):
        migration.upgrade_schema(blank_database_url)
        assert migration.require_schema(blank_database_url) == migration.newest_revision()
    engine = sa.create_engine(blank_database_url)
    with engine.begin() as conn:
        assert conn.execute(sa.select(console_sessions)).all() == [SESSION]
        assert conn.execute(sa.select(console_attempts)).all() == [(*ATTEMPT, None)]
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, all_metadata()) == []
        next_id = sa.insert(console_attempts).values(subject="c", at=1.0, slot=0)
        assert conn.execute(next_id).inserted_primary_key == (2,)
    engine.dispose()


def test_a_migration_that_was_interrupted_after_the_tables_were_made_goes_on(blank_database_url: str) -> None:
    migration.upgrade_schema(blank_database_url)
    engine = sa.create_engine(blank_database_url)
    with engine.begin() as conn:  # MySQL commits each statement: the version is written last
        conn.execute(sa.delete(TABLES.metadata.tables[TABLES.version_table]))
        conn.execute(sa.insert(console_sessions).values(SESSION))
    with pytest.raises(Unavailable, match=r"tables of console are not there yet.* needs 0002"):
        migration.require_schema(blank_database_url)
    migration.upgrade_schema(blank_database_url)
    assert migration.require_schema(blank_database_url) == migration.newest_revision()
    with engine.connect() as conn:
        assert conn.execute(sa.select(console_sessions)).all() == [SESSION]
    engine.dispose()


def set_revision(url: str, revision: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.execute(sa.update(TABLES.metadata.tables[TABLES.version_table]).values(version_num=revision))
    engine.dispose()


def test_tables_that_a_later_version_migrated_are_used_and_left_as_they_are(database_url: str) -> None:
    set_revision(database_url, "0999")
    migration.upgrade_schema(database_url)
    assert migration.require_schema(database_url) == migration.newest_revision()
    assert migration.find_database(database_url).branches == {TABLES: "0999"}


def test_tables_that_this_version_cannot_work_with_are_refused_and_left_alone(database_url: str) -> None:
    set_revision(database_url, "1000")
    for action in (migration.upgrade_schema, migration.require_schema):
        with pytest.raises(Unavailable, match=r"tables of console are at revision 1000 of a later version"):
            action(database_url)
    assert migration.find_database(database_url).branches == {TABLES: "1000"}
