"""Tests of adopting a database of OpenStack Placement, and of the way back with or without later changes."""

import multiprocessing
import os

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from placement.db import adoption, migration
from placement.exceptions import Conflict, Unavailable
from placement_extras.migration.abandonment import AbandonWay, abandon_adoption
from placement_extras.migration.adoption import adopt_database, drop_stock, require_move_rights
from placement_extras.migration.content import different_titles
from placement_extras.migration.stock_database import open_source
from tests.placement.maintenance.conftest import OWNER, MaintainedService
from tests.placement.moving_clock import after
from tests.placement.sql import read_scalar
from tests.placement_extras.migration import reference_world as world
from tests.placement_extras.migration.adopted import NEW_HOST, NEW_SERVER, contents, write


@pytest.fixture
def stock(reference):
    """A database of OpenStack Placement at the last revision of its schema."""
    reference.at_revision(adoption.REVISIONS[-1])
    return reference


def adopted(stock):
    return adopt_database(stock.url, OWNER, ["LLC", "MBA"])


def names(url):
    """Return the names of columns, indexes and constraints by table."""
    inspector = sa.inspect(sa.create_engine(url, poolclass=sa.NullPool))
    return {
        table: (
            sorted((column["name"], str(column["default"])) for column in inspector.get_columns(table)),
            sorted(str(index["name"]) for index in inspector.get_indexes(table)),
            str(inspector.get_pk_constraint(table)["name"]),
            sorted(str(key["name"]) for key in inspector.get_foreign_keys(table)),
        )
        for table in inspector.get_table_names()
    }


def test_an_adoption_copies_everything_and_keeps_the_old_tables(stock):
    before = contents(stock.url)
    outcome = adopted(stock)
    assert outcome.copied
    assert different_titles(outcome.comparison) == []
    after = contents(stock.url)
    assert {name: after[f"stock_{name}"] for name in before} == before
    assert migration.require_schema(stock.url) == migration.newest_revision()
    service = MaintainedService(stock.url)
    held = service.get(f"/allocations/{world.SERVER}")
    assert held["consumer_generation"] == 5
    assert held["allocations"][world.NUMA] == {"generation": 3, "resources": {"VCPU": 4}}
    assert service.post("/resource_providers", {"name": "new", "uuid": NEW_HOST}) == 200
    assert not adopted(stock).copied


def test_an_abandonment_without_later_changes_restores_the_old_tables_exactly(stock):
    before, named = contents(stock.url), names(stock.url)
    adopted(stock)
    MaintainedService(stock.url).get("/resource_providers")
    assert abandon_adoption(stock.url, OWNER).changes == ()
    assert contents(stock.url) == before
    assert names(stock.url) == named
    adopted(stock)
    assert MaintainedService(stock.url).get(f"/allocations/{world.SERVER}")["consumer_generation"] == 5


def asked(service):
    """Return the answers that clients get from the service."""
    paths = ["/resource_providers", "/resource_classes", "/usages?project_id=green", "/usages?project_id=red"]
    for uuid in (world.SHARING, world.HOST, world.NUMA, world.DEVICE, NEW_HOST):
        paths += [
            f"/resource_providers/{uuid}{part}" for part in ("", "/inventories", "/traits", "/aggregates")
        ]
    paths += [f"/allocations/{uuid}" for uuid in (world.SERVER, world.MIGRATION, world.UNTYPED, NEW_SERVER)]
    return {path: _sorted(service.get(path)) for path in paths}


def _sorted(answer):
    if isinstance(answer, dict):
        return {key: _sorted(value) for key, value in answer.items()}
    return sorted(map(repr, answer)) if isinstance(answer, list) else answer


def test_an_abandonment_lists_later_changes_and_refuses_to_lose_them(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    write(service)
    before, seen = contents(stock.url), asked(service)
    with pytest.raises(Conflict) as refused:
        abandon_adoption(stock.url, OWNER)
    text = str(refused.value)
    assert f"allocation made: 2 VCPU of {NEW_HOST} for {NEW_SERVER}" in text
    assert f"allocation removed: 2 VCPU of {world.NUMA} for {world.MIGRATION}" in text
    assert "db abandon --carry-back" in text
    assert contents(stock.url) == before
    assert asked(service) == seen


def test_later_changes_are_carried_back(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    write(service)
    seen = asked(service)
    outcome = abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK)
    assert (
        "resource class LLC: OpenStack Placement has none of this name, so it stays as a custom class"
        in outcome.notes
    )
    assert f"resource provider made: host2 ({NEW_HOST})" in outcome.changes
    assert migration.version(stock.url) == adoption.REVISIONS[-1]
    assert not {name for name in contents(stock.url) if name.startswith(("stock_", "adopted_", "change"))}
    adopted(stock)
    assert asked(MaintainedService(stock.url)) == seen


def test_a_name_in_other_capitals_is_carried_back_or_refused_with_advice(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    assert service.post("/resource_providers", {"name": "HOST", "uuid": NEW_HOST}) == 200
    if make_url(stock.url).get_backend_name() == "mysql":
        refused = r"stock_resource_providers does not take .*'HOST'.* Nothing is changed. Change that row"
        with pytest.raises(Conflict, match=refused):
            abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK)
        assert service.put(f"/resource_providers/{NEW_HOST}", {"name": "another"}) == 200
    assert abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK).changes
    adopted(stock)
    assert MaintainedService(stock.url).get(f"/resource_providers/{NEW_HOST}")["uuid"] == NEW_HOST


def test_later_changes_are_dropped_on_demand(stock):
    before = contents(stock.url)
    adopted(stock)
    write(MaintainedService(stock.url))
    abandon_adoption(stock.url, OWNER, AbandonWay.DISCARD)
    assert contents(stock.url) == before


def test_a_provider_that_was_created_again_under_its_uuid_is_carried_back(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    assert service.delete(f"/resource_providers/{world.NAMELESS}") == 204
    assert service.post("/resource_providers", {"name": "numa2", "uuid": world.NAMELESS}) == 200
    body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    assert service.put(f"/resource_providers/{world.NAMELESS}/inventories", body) == 200
    abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK)
    adopted(stock)
    service = MaintainedService(stock.url)
    assert service.get(f"/resource_providers/{world.NAMELESS}")["name"] == "numa2"
    answer = service.get(f"/resource_providers/{world.NAMELESS}/inventories")
    assert answer["inventories"]["VCPU"]["total"] == 8


def test_a_running_worker_reports_an_abandonment_and_serves_again_after_the_next_adoption(stock, caplog):
    adopted(stock)
    service = MaintainedService(stock.url)
    service.get("/resource_providers")
    abandon_adoption(stock.url, OWNER)
    for _ in range(2):
        answer = service.answer("/resource_providers")
        assert answer.status_int == 503
        assert "'placement-manage db adopt'" in answer.json["errors"][0]["detail"]
        assert service.put("/traits/CUSTOM_NEW", {}) == 503
    told = [record.message for record in caplog.records if "cannot be used any more" in record.message]
    assert len(told) == 1
    assert "The database is that of OpenStack Placement" in told[0]
    adopted(stock)
    assert service.get(f"/allocations/{world.SERVER}")["consumer_generation"] == 5


@pytest.mark.parametrize("revision", adoption.REVISIONS)
def test_each_revision_is_recognised_and_left_alone_by_sync(reference_of, revision):
    reference = reference_of(consumer_types=revision in adoption.REVISIONS[-2:])
    reference.fill()
    reference.at_revision(revision)
    before = contents(reference.url)
    for action in (
        migration.upgrade_schema,
        migration.require_schema,
        lambda url: migration.stamp_revision(url, "head"),
    ):
        with pytest.raises(Unavailable, match=rf"revision {revision}.*'placement-manage db adopt'"):
            action(reference.url)
    assert contents(reference.url) == before
    adopted(reference)
    assert abandon_adoption(reference.url, OWNER).changes == ()
    assert contents(reference.url) == before


def test_consumer_types_that_an_old_schema_cannot_hold_are_reported(reference_of):
    reference = reference_of(consumer_types=False)
    reference.fill()
    reference.at_revision(adoption.REVISIONS[0])
    adopted(reference)
    write(MaintainedService(reference.url))
    outcome = abandon_adoption(reference.url, OWNER, AbandonWay.CARRY_BACK)
    assert "consumer types: the old schema has none, so 1 consumers lose theirs" in outcome.notes
    adopted(reference)
    held = MaintainedService(reference.url).get(f"/allocations/{NEW_SERVER}")
    assert (held["consumer_type"], held["project_id"]) == ("unknown", "green")


def test_groups_of_claims_are_reported_as_lost_and_their_allocations_carried_back(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    wanted = {
        "consumer_uuid": NEW_SERVER,
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
        "project_id": "green",
        "user_id": "ann",
        "query": "resources=MEMORY_MB:256",
        "group": {"name": "web", "policy": "affinity"},
    }
    assert service.post("/ext/v1/claims", {"claims": [wanted]}) == 201
    outcome = abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK)
    assert outcome.notes == ("groups of claims: OpenStack Placement has none, so 1 consumers leave theirs",)
    assert "consumer_groups" not in names(stock.url)
    adopted(stock)
    (held,) = MaintainedService(stock.url).get(f"/allocations/{NEW_SERVER}")["allocations"].values()
    assert held["resources"] == {"MEMORY_MB": 256}


def test_reservations_that_lose_their_end_are_reported(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    write(service)
    body = {"query": "resources=VCPU:1", "project_id": "green", "user_id": "green", "expires_in": 3600}
    uuid = "7d9f3a52-1c64-4f0e-9a7e-000000000001"
    assert service.post("/ext/v1/reservations", {"uuid": uuid, **body}) == 201
    said = (
        "reservations: OpenStack Placement has none, so 1 consumers keep the reserved amounts until their"
        f" allocations are deleted: {uuid}"
    )
    assert said in abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK).notes
    adopted(stock)
    assert MaintainedService(stock.url).get(f"/allocations/{uuid}")["consumer_type"] == "RESERVATION"


def test_windows_that_have_not_begun_are_lost_and_leave_no_holds(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    write(service)
    times = {"starts_at": after(3600), "expires_at": after(7200)}
    uuid = "7d9f3a52-1c64-4f0e-9a7e-000000000001"
    body = {"uuid": uuid, "query": "resources=VCPU:1", "project_id": "green", "user_id": "green", **times}
    assert service.post("/ext/v1/reservations", body) == 201
    said = (
        "reservations that begin later: OpenStack Placement has none, so 1 are lost, and their room is free"
        f" for all: {uuid} of project green from {times['starts_at']} until {times['expires_at']}"
    )
    assert said in abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK).notes
    assert read_scalar(stock.url, "SELECT COUNT(*) FROM consumer_types WHERE name = 'WINDOW_HOLD'") == 0


def test_a_window_that_claims_use_up_is_lost_and_its_claims_stay(stock):
    adopted(stock)
    service = MaintainedService(stock.url)
    write(service)
    body = {"query": "resources=VCPU:1", "project_id": "green", "user_id": "green"}
    window = "7d9f3a52-1c64-4f0e-9a7e-000000000001"
    times = {"starts_at": after(0), "expires_at": after(7200)}
    assert service.post("/ext/v1/reservations", {"uuid": window, **body, **times}) == 201
    guest = "0b5d0a34-6bb5-4a2f-9d6e-000000000001"
    claim = {"consumer_uuid": guest, "consumer_generation": None, "consumer_type": "INSTANCE", **body}
    claims = {"claims": [claim], "reservation": window, "ends_at": after(3600)}
    assert service.post("/ext/v1/claims", claims) == 201
    notes = abandon_adoption(stock.url, OWNER, AbandonWay.CARRY_BACK).notes
    assert (
        "reservations in use: OpenStack Placement has none, so up to 1 amounts are free for all when claims"
        " give them back" in notes
    )
    adopted(stock)
    service = MaintainedService(stock.url)
    assert service.get(f"/allocations/{window}")["allocations"] == {}
    (held,) = service.get(f"/allocations/{guest}")["allocations"].values()
    assert held["resources"] == {"VCPU": 1}


def test_rows_that_refer_to_missing_rows_are_refused_and_nothing_is_changed(stock):
    stock.execute("INSERT INTO inventories VALUES (NULL, NULL, 99, 4711, 0, 1, 0, 1, 1, 1, 1.0)")
    before, named = contents(stock.url), names(stock.url)
    with pytest.raises(Conflict, match="inventory number 99 of 1"):
        adopted(stock)
    assert contents(stock.url) == before
    assert names(stock.url) == named
    outcome = adopt_database(stock.url, OWNER, [], skip_orphans=True)
    assert "not copied: inventory number 99 of 1: there is no resource provider number 4711" in outcome.notes
    abandon_adoption(stock.url, OWNER)
    assert contents(stock.url) == before


@pytest.mark.parametrize("name", ["stock_traits", "adopted_inventories", "change_buckets"])
def test_tables_of_other_programs_are_left_alone(stock, name):
    stock.execute(f"CREATE TABLE {name} (id INTEGER)", f"INSERT INTO {name} VALUES (1)")
    before, named = contents(stock.url), names(stock.url)
    with pytest.raises(Conflict, match=f"under names that are needed: {name}. Nothing is changed"):
        adopted(stock)
    assert contents(stock.url) == before
    assert names(stock.url) == named
    with pytest.raises(Conflict, match="nothing to go back to"):
        abandon_adoption(stock.url, OWNER)
    assert contents(stock.url) == before


@pytest.fixture
def poor(stock):
    """The URL of the database for a database user that may only read and write rows."""
    url, user = make_url(stock.url), f"poor_{os.getpid()}"
    if url.get_backend_name() == "sqlite":
        pytest.skip("SQLite has no users")
    rows = "SELECT, INSERT, UPDATE, DELETE"
    if url.get_backend_name() == "postgresql":
        stock.execute(f"CREATE ROLE {user} LOGIN", f"GRANT {rows} ON ALL TABLES IN SCHEMA public TO {user}")
        gone = (f"DROP OWNED BY {user}", f"DROP ROLE {user}")
    else:
        # CREATE, too: the lock of a move is a table
        stock.execute(f"CREATE USER {user}@'%'", f"GRANT {rows}, CREATE ON {url.database}.* TO {user}@'%'")
        gone = (f"DROP USER {user}@'%'",)
    yield url.set(username=user).render_as_string(hide_password=False)
    stock.execute(*gone)


def test_missing_rights_of_the_database_user_are_named_before_the_first_change(stock, poor):
    lacking = {"postgresql": "may not CREATE in the schema public", "mysql": "it lacks DROP, ALTER, INDEX"}
    named = lacking[make_url(poor).get_backend_name()]
    before = contents(stock.url)
    for move in (lambda: adopt_database(poor, OWNER, []), lambda: look(poor)):
        with pytest.raises(Conflict, match=f"{named}.*Nothing is changed. Grant them"):
            move()
    assert contents(stock.url) == before
    adopted(stock)
    after = contents(stock.url)
    if make_url(poor).get_backend_name() == "postgresql":
        user = make_url(poor).username
        stock.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {user}")
    for move in (lambda: abandon_adoption(poor, OWNER, AbandonWay.DISCARD), lambda: drop_stock(poor)):
        with pytest.raises(Conflict, match=f"{named}.*Nothing is changed. Grant them"):
            move()
    assert contents(stock.url) == after


def test_a_database_user_needs_rights_on_the_tables_of_the_move_only(stock, poor):
    url = make_url(poor)
    if url.get_backend_name() == "postgresql":
        names = (*stock.metadata.tables, "alembic_version")
        stock.execute(
            f"GRANT CREATE ON SCHEMA public TO {url.username}",
            *(f"ALTER TABLE {name} OWNER TO {url.username}" for name in names),
        )
    else:
        stock.execute(f"GRANT ALL ON {url.database}.* TO {url.username}@'%'")
    stock.execute("CREATE TABLE theirs (id INTEGER)")
    before = contents(stock.url)
    adopt_database(poor, OWNER, [])
    assert abandon_adoption(poor, OWNER).changes == ()
    assert contents(stock.url) == before


def look(url):
    """Check the database as a dry run does."""
    with open_source(url, OWNER) as source:
        require_move_rights(source.conn)


def test_our_own_database_is_neither_adopted_nor_abandoned(database_url):
    with pytest.raises(Conflict, match="nothing to adopt"):
        adopt_database(database_url, OWNER, [])
    with pytest.raises(Conflict, match="nothing to go back to"):
        abandon_adoption(database_url, OWNER)


def _adopt(url):
    adopt_database(url, OWNER, [])


@pytest.mark.slow
def test_two_adoptions_at_once_both_succeed(stock):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_adopt, args=(stock.url,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert MaintainedService(stock.url).get(f"/allocations/{world.SERVER}")["consumer_generation"] == 5
