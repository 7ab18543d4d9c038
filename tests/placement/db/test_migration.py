"""The schema: made by migrations, the same as the tables say, by several processes at once."""

import multiprocessing

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from placement.db import buckets, migration
from placement.db.tables import change_buckets, metadata
from placement.exceptions import Unavailable


def test_migrations_make_the_schema_that_the_tables_describe(database_url: str) -> None:
    engine = sa.create_engine(database_url)
    with engine.connect() as conn:
        assert compare_metadata(MigrationContext.configure(conn, opts={"compare_type": True}), metadata) == []
    engine.dispose()


def test_an_upgrade_leaves_the_newest_version_and_every_change_bucket(blank_database_url: str) -> None:
    assert migration.version(blank_database_url) is None
    migration.upgrade(blank_database_url)
    migration.upgrade(blank_database_url)
    assert migration.version(blank_database_url) == migration.newest()
    engine = sa.create_engine(blank_database_url)
    with engine.connect() as conn:
        present = conn.execute(sa.select(change_buckets.c.id)).scalars().all()
    engine.dispose()
    assert sorted(present) == sorted(buckets.ALL)


def test_processes_that_upgrade_an_empty_database_at_once_all_succeed(blank_database_url: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=migration.upgrade, args=(blank_database_url,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert migration.version(blank_database_url) == migration.newest()


def test_a_stamped_database_is_believed(blank_database_url: str) -> None:
    migration.stamp(blank_database_url, "head")
    assert migration.version(blank_database_url) == migration.newest()


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
        migration.upgrade(url)
