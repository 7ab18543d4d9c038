"""Tests that migrations make the schema of the tables, even if several processes start them at the
same time.
"""

import multiprocessing
import os
import signal

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from placement.db import buckets, migration
from placement.db.tables import (
    ExtensionTables,
    all_metadata,
    allocations,
    change_buckets,
    consumers,
    extension_tables,
    resource_classes,
    resource_providers,
)
from placement.exceptions import Unavailable
from tests.placement.sql import execute_sql, read_scalar


def test_migrations_make_the_schema_that_the_tables_describe(database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, all_metadata()) == []
    engine.dispose()


def test_an_upgrade_leaves_the_newest_version_and_every_change_bucket(blank_database_url: str) -> None:
    assert migration.version(blank_database_url) is None
    migration.upgrade_schema(blank_database_url)
    migration.upgrade_schema(blank_database_url)
    assert migration.version(blank_database_url) == migration.newest_revision()
    engine = sa.create_engine(blank_database_url)
    with engine.connect() as conn:
        present = conn.execute(sa.select(change_buckets.c.id)).scalars().all()
    engine.dispose()
    assert sorted(present) == sorted(buckets.ALL)


def test_an_upgrade_keeps_allocations_and_makes_room_for_more_consumers(blank_database_url: str) -> None:
    migration.upgrade_schema(blank_database_url, "0001")
    engine = sa.create_engine(blank_database_url)
    with engine.begin() as conn:
        now = {"updated_at": 0.0}
        conn.execute(sa.insert(resource_classes).values(id=1, name="VCPU", **now))
        provider = {"id": 1, "uuid": "p", "name": "p", "generation": 0, "root_id": 1, "bucket": 0}
        conn.execute(sa.insert(resource_providers).values(**provider, change_seq=0, **now))
        owner = {"project_id": "p", "user_id": "u", "generation": 1}
        conn.execute(sa.insert(consumers).values(uuid="a", **owner, **now))
        held = {"provider_id": 1, "resource_class_id": 1, "used": 3}
        conn.execute(sa.insert(allocations).values(consumer_id=1, **held, **now))
    migration.upgrade_schema(blank_database_url)
    with engine.begin() as conn:
        conn.execute(sa.insert(consumers).values(uuid="b", **owner, **now))
        conn.execute(sa.insert(consumers).values(id=2**40, uuid="c", **owner, **now))
        conn.execute(sa.insert(allocations).values(consumer_id=2**40, **held, **now))
        ids = sa.select(allocations.c.consumer_id, allocations.c.used).order_by(allocations.c.consumer_id)
        assert conn.execute(ids).all() == [(1, 3), (2**40, 3)]
        assert conn.execute(sa.select(consumers.c.id).where(consumers.c.uuid == "b")).scalar_one() == 2
        if conn.dialect.name != "sqlite":  # without a notification
            with pytest.raises(sa.exc.IntegrityError), conn.begin_nested():
                conn.execute(sa.delete(consumers).where(consumers.c.uuid == "a"))
    engine.dispose()


def test_an_upgrade_from_0002_makes_the_epoch_and_keeps_the_counters(blank_database_url: str) -> None:
    migration.upgrade_schema(blank_database_url, "0002")
    engine = sa.create_engine(blank_database_url)
    counters = sa.select(change_buckets.c.id, change_buckets.c.counter)
    with engine.begin() as conn:
        conn.execute(sa.delete(change_buckets).where(change_buckets.c.id == buckets.EPOCH))  # as 0002 was
        conn.execute(sa.update(change_buckets).values(counter=10 * change_buckets.c.id, deletions=3))
        before = {row.id: row.counter for row in conn.execute(counters)}
    migration.upgrade_schema(blank_database_url)
    with engine.connect() as conn:
        after = {row.id: row.counter for row in conn.execute(counters)}
    assert after.pop(buckets.EPOCH) > 0
    assert after == before
    engine.dispose()


def test_an_upgrade_from_0011_keeps_windows_without_margins(blank_database_url: str) -> None:
    migration.upgrade_schema(blank_database_url, "0011")
    execute_sql(
        blank_database_url,
        "INSERT INTO consumers (id, uuid, project_id, user_id, consumer_type, generation, updated_at)"
        " VALUES (1, 'c1', 'p', 'u', 'RESERVATION', 1, 0)",
        "INSERT INTO reservations (consumer_id, starts_at, expires_at) VALUES (1, 10, 20)",
    )
    migration.upgrade_schema(blank_database_url)
    # a worker of the earlier release writes no margins
    execute_sql(
        blank_database_url,
        "INSERT INTO consumers (id, uuid, project_id, user_id, consumer_type, generation, updated_at)"
        " VALUES (2, 'c2', 'p', 'u', 'RESERVATION', 1, 0)",
        "INSERT INTO reservations (consumer_id, starts_at, expires_at) VALUES (2, 20, 30)",
    )
    without = "SELECT COUNT(*) FROM reservations WHERE lead_time = 0 AND cleaning_time = 0"
    assert read_scalar(blank_database_url, without) == 2


def test_an_upgrade_renews_the_epoch_and_one_that_changes_nothing_does_not(blank_database_url: str) -> None:
    engine = sa.create_engine(blank_database_url)
    query = sa.select(change_buckets.c.counter).where(change_buckets.c.id == buckets.EPOCH)
    epochs = []
    for revision in ("0001", "0002", "head", "head"):
        migration.upgrade_schema(blank_database_url, revision)
        with engine.connect() as conn:
            epochs.append(conn.execute(query).scalar_one())
    engine.dispose()
    assert 0 not in epochs
    assert len(set(epochs)) == 3
    assert epochs[2] == epochs[3]


@pytest.mark.slow
def test_processes_that_upgrade_an_empty_database_at_once_all_succeed(blank_database_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=migration.upgrade_schema, args=(blank_database_url,)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert migration.version(blank_database_url) == migration.newest_revision()


def _upgrade_until_killed(url: str, statements: int) -> None:
    """Run the migrations in a process that is killed after a number of statements that change the schema."""
    left = statements

    @sa.event.listens_for(sa.Engine, "after_cursor_execute")
    def _count(conn: object, cursor: object, statement: str, *others: object) -> None:
        nonlocal left
        left -= statement.strip().upper().startswith(("CREATE", "ALTER", "DROP"))
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    migration.upgrade_schema(url)


@pytest.mark.slow
@pytest.mark.parametrize("statements", [1, 2, 4, 9, 14, 20, 28, 31])
def test_a_first_upgrade_that_was_killed_can_be_run_again(blank_database_url: str, statements: int) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=_upgrade_until_killed, args=(blank_database_url, statements)
    )
    process.start()
    process.join(120)
    assert process.exitcode in (-signal.SIGKILL, 0)  # SQLite has fewer statements
    migration.upgrade_schema(blank_database_url)
    assert migration.version(blank_database_url) == migration.newest_revision()
    engine = sa.create_engine(blank_database_url)
    with engine.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, all_metadata()) == []
        present = conn.execute(sa.select(change_buckets.c.id)).scalars().all()
    engine.dispose()
    assert sorted(present) == sorted(buckets.ALL)


def test_a_database_of_another_program_is_refused_and_left_alone(blank_database_url: str) -> None:
    engine = sa.create_engine(blank_database_url)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE traits (id INTEGER PRIMARY KEY, name VARCHAR(255))")
    with pytest.raises(Unavailable, match="a table traits of another program"):
        migration.upgrade_schema(blank_database_url)
    assert [column["name"] for column in sa.inspect(engine).get_columns("traits")] == ["id", "name"]
    engine.dispose()


def at_revision(url: str, revision: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num = :it"), {"it": revision})
    engine.dispose()


def test_a_database_that_a_later_version_migrated_is_used_and_left_as_it_is(database_url: str) -> None:
    at_revision(database_url, "0999")
    migration.upgrade_schema(database_url)
    assert migration.require_schema(database_url) == "0999"


@pytest.mark.parametrize(
    ("revision", "words"),
    [
        ("1000", "at revision 1000 of a later version.* run that version, or restore the backup"),
        ("5d1d1e6b4d4a", "belongs to another program.* 'placement-manage import'"),
        ("b4ed3a175331", "that of OpenStack Placement.* 'placement-manage db adopt'"),
    ],
)
def test_a_database_that_this_version_cannot_work_with_is_refused_and_left_alone(
    database_url: str, revision: str, words: str
) -> None:
    at_revision(database_url, revision)
    for action in (migration.upgrade_schema, migration.require_schema):
        with pytest.raises(Unavailable, match=words):
            action(database_url)
    assert migration.version(database_url) == revision


def test_an_older_database_is_refused_until_it_is_migrated(blank_database_url: str) -> None:
    with pytest.raises(Unavailable, match=r"no schema yet.* run 'placement-manage db sync'"):
        migration.require_schema(blank_database_url)
    migration.upgrade_schema(blank_database_url, "0001")
    with pytest.raises(Unavailable, match=r"at revision 0001.* run 'placement-manage db sync'"):
        migration.require_schema(blank_database_url)
    migration.upgrade_schema(blank_database_url)
    assert migration.require_schema(blank_database_url) == migration.newest_revision()


def test_revisions_are_numbers_that_grow() -> None:
    folder = migration.script_location() / "versions"
    revisions = [path.name[:5] for path in sorted(folder.glob("*.py"))]
    assert revisions == [f"{number:04}_" for number in range(1, len(revisions) + 1)]


@pytest.mark.parametrize(
    "branch", [None, *extension_tables()], ids=lambda each: each.name if each else "core"
)
def test_the_names_of_files_are_the_revisions_that_alembic_finds(branch: ExtensionTables | None) -> None:
    folder = migration.script_location()
    scripts = ScriptDirectory(
        str(folder), version_locations=[str(folder / "versions" if branch is None else branch.revisions)]
    )
    found = {script.revision for script in scripts.walk_revisions()}
    assert migration.known_revisions(branch) == found
    assert migration.newest_revision(branch) == scripts.get_current_head()


def test_a_stamped_database_is_believed(blank_database_url: str) -> None:
    migration.stamp_revision(blank_database_url, "head")
    assert migration.version(blank_database_url) == migration.newest_revision()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nonexistent/folder/placement.sqlite",
        "postgresql+psycopg://nobody@127.0.0.1:1/placement",
        "mysql+pymysql://nobody@127.0.0.1:1/placement",
    ],
)
def test_a_database_that_does_not_answer_is_unavailable(url: str) -> None:
    with pytest.raises(Unavailable, match="not available"):
        migration.upgrade_schema(url)
