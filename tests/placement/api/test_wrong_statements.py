"""A statement that the database refuses is a defect: 500 with a traceback in the log, not 503."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests.placement.running import Admin, application

HOST, CONSUMER = str(uuid4()), str(uuid4())
CLAIM = {
    "allocations": {HOST: {"resources": {"VCPU": 1}}},
    "consumer_generation": None,
    "project_id": "p",
    "user_id": "u",
    "consumer_type": "INSTANCE",
}


@dataclass
class Rig:
    """A service with one host, and its database under the hands of somebody else."""

    admin: Admin
    database: sa.Engine

    def execute(self, statement: str) -> None:
        with self.database.begin() as conn:
            conn.exec_driver_sql(statement)


@pytest.fixture
def rig(database_url: str) -> Iterator[Rig]:
    database = sa.create_engine(database_url, poolclass=sa.pool.NullPool)
    admin = Admin(application(database_url))
    assert admin("POST", "/resource_providers", json={"name": "host", "uuid": HOST}).status_code == 200
    inventory = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    assert admin("PUT", f"/resource_providers/{HOST}/inventories", json=inventory).status_code == 200
    yield Rig(admin, database)
    database.dispose()


def expect_defect(rig: Rig, caplog: pytest.LogCaptureFixture, *request: str, **options: Any) -> None:
    """The request is answered 500; the log has the traceback of an error of the database."""
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        answer = rig.admin(*request, **options)
    assert answer.status_code == 500, answer.text
    assert "not available" not in answer.text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], sa.exc.SQLAlchemyError)


def test_writing_reading_and_modelling_what_is_not_there(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.execute("ALTER TABLE allocations RENAME COLUMN used TO taken")
    expect_defect(rig, caplog, "PUT", f"/allocations/{CONSUMER}", json=CLAIM)
    expect_defect(rig, caplog, "GET", "/usages?project_id=p")
    rig.execute("ALTER TABLE resource_providers RENAME COLUMN name TO title")
    rig.execute("UPDATE change_buckets SET counter = counter + 1 WHERE id = 1")
    expect_defect(rig, caplog, "GET", "/resource_providers")
    rig.execute("ALTER TABLE resource_providers RENAME COLUMN title TO name")
    rig.execute("ALTER TABLE allocations RENAME COLUMN taken TO used")
    assert rig.admin("PUT", f"/allocations/{CONSUMER}", json=CLAIM).status_code == 204
    assert rig.admin("GET", "/resource_providers").status_code == 200


def test_asking_for_changes_where_nobody_counts_them(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.execute("ALTER TABLE change_buckets RENAME TO buckets_of_changes")
    for _ in range(2):
        expect_defect(rig, caplog, "GET", f"/resource_providers/{HOST}")
    rig.execute("ALTER TABLE buckets_of_changes RENAME TO change_buckets")
    assert rig.admin("GET", f"/resource_providers/{HOST}").status_code == 200


def test_a_row_that_a_constraint_of_somebody_else_refuses(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.execute("ALTER TABLE consumers ADD COLUMN shelf INTEGER NOT NULL DEFAULT 1 CHECK (shelf > 1)")
    expect_defect(rig, caplog, "PUT", f"/allocations/{CONSUMER}", json=CLAIM)
