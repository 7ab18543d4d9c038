"""Tests of statements that the database refuses: the answer is 500 and not 503, and the log has a
traceback.
"""

import logging
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from tests.placement.builders import claim_body, make_provider
from tests.placement.running import Admin, application
from tests.placement.sql import execute_sql

HOST, CONSUMER = str(uuid4()), str(uuid4())
CLAIM = claim_body({HOST: {"VCPU": 1}})


@dataclass
class DamagedService:
    """A service with one host, and access to its database in order to damage it."""

    admin: Admin
    url: str

    def execute(self, statement: str) -> None:
        execute_sql(self.url, statement)


@pytest.fixture
def damaged(database_url: str) -> DamagedService:
    admin = Admin(application(database_url))
    make_provider(admin, "host", provider=HOST, VCPU=8)
    return DamagedService(admin, database_url)


def expect_defect(
    damaged: DamagedService, caplog: pytest.LogCaptureFixture, *request: str, **options: Any
) -> None:
    """Check that the request is answered 500, and that the log has the traceback of an error of the
    database.
    """
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        answer = damaged.admin(*request, **options)
    assert answer.status_code == 500, answer.text
    assert "not available" not in answer.text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], sa.exc.SQLAlchemyError)


def test_missing_columns_are_defects_of_writes_reads_and_the_read_model(
    damaged: DamagedService, caplog: pytest.LogCaptureFixture
) -> None:
    damaged.execute("ALTER TABLE allocations RENAME COLUMN used TO taken")
    expect_defect(damaged, caplog, "PUT", f"/allocations/{CONSUMER}", json=CLAIM)
    expect_defect(damaged, caplog, "GET", "/usages?project_id=p")
    damaged.execute("ALTER TABLE resource_providers RENAME COLUMN name TO title")
    damaged.execute("UPDATE change_buckets SET counter = counter + 1 WHERE id = 1")
    expect_defect(damaged, caplog, "GET", "/resource_providers")
    damaged.execute("ALTER TABLE resource_providers RENAME COLUMN title TO name")
    damaged.execute("ALTER TABLE allocations RENAME COLUMN taken TO used")
    assert damaged.admin("PUT", f"/allocations/{CONSUMER}", json=CLAIM).status_code == 204
    assert damaged.admin("GET", "/resource_providers").status_code == 200


def test_a_missing_table_of_change_counters_is_a_defect(
    damaged: DamagedService, caplog: pytest.LogCaptureFixture
) -> None:
    damaged.execute("ALTER TABLE change_buckets RENAME TO buckets_of_changes")
    for _ in range(2):
        expect_defect(damaged, caplog, "GET", f"/resource_providers/{HOST}")
    damaged.execute("ALTER TABLE buckets_of_changes RENAME TO change_buckets")
    assert damaged.admin("GET", f"/resource_providers/{HOST}").status_code == 200


def test_a_foreign_constraint_that_refuses_a_row_is_a_defect(
    damaged: DamagedService, caplog: pytest.LogCaptureFixture
) -> None:
    damaged.execute("ALTER TABLE consumers ADD COLUMN shelf INTEGER NOT NULL DEFAULT 1 CHECK (shelf > 1)")
    expect_defect(damaged, caplog, "PUT", f"/allocations/{CONSUMER}", json=CLAIM)
