"""Tests of finding damage in a database, and of its repair while the service runs."""

import pytest
import sqlalchemy as sa

from placement.db import buckets
from placement.db.tables import change_buckets
from placement.maintenance.audit import AuditProblem, DatabaseFinding, find_contradictions
from placement.maintenance.heal import heal_database
from placement.store.time_schedule import hold_uuid
from tests.placement.builders import claim_body, inventories_body
from tests.placement.maintenance.conftest import OWNER
from tests.placement.moving_clock import advance_clock, after
from tests.placement_extras.migration.reference_world import uuid

ROOT, CHILD, GRANDCHILD, OTHER = (uuid("a", number) for number in range(1, 5))
SERVER, VOLUME = uuid("c", 1), uuid("c", 2)

_UNCHECKED = {
    "sqlite": "PRAGMA foreign_keys = OFF",
    "postgresql": "SET session_replication_role = replica",
    "mysql": "SET foreign_key_checks = 0",
}


@pytest.fixture
def world(service):
    """Two trees of providers, one with allocations of two consumers, and the service that serves them."""
    for number, (name, parent) in enumerate(
        ((ROOT, None), (CHILD, ROOT), (GRANDCHILD, CHILD), (OTHER, None))
    ):
        body = {"name": f"provider {number}", "uuid": name, "parent_provider_uuid": parent}
        assert service.post("/resource_providers", body) == 200
    body = inventories_body(0, VCPU=8, MEMORY_MB=4096)
    assert service.put(f"/resource_providers/{CHILD}/inventories", body) == 200
    for consumer, resources in ((SERVER, {"VCPU": 6, "MEMORY_MB": 1024}), (VOLUME, {"VCPU": 2})):
        body = claim_body({CHILD: resources}, project_id="red", user_id="ann")
        assert service.put(f"/allocations/{consumer}", body) == 204
    return service


@pytest.fixture
def damage(world, database_url):
    """Execute statements that the constraints of the database would refuse."""
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)

    def run(*statements):
        with engine.begin() as conn:
            conn.exec_driver_sql(_UNCHECKED[conn.engine.url.get_backend_name().replace("mariadb", "mysql")])
            for statement in statements:
                conn.exec_driver_sql(statement)

    return run


def findings(database):
    with database.read() as conn:
        return find_contradictions(conn)


def shown(found):
    return [(finding.problem, finding.subject, finding.detail) for finding in found]


def tree_of(service, provider):
    return {
        each["uuid"] for each in service.get(f"/resource_providers?in_tree={provider}")["resource_providers"]
    }


def test_a_database_written_by_the_service_alone_has_no_findings(world, database):
    assert findings(database) == []
    healed = heal_database(database, OWNER)
    assert (healed.repaired, healed.remaining) == ([], [])


def test_allocations_without_consumer_get_one_that_clients_can_see(damage, world, database):
    damage(f"DELETE FROM consumers WHERE uuid = '{SERVER}'")
    (found,) = findings(database)
    assert found.problem is AuditProblem.NO_CONSUMER
    assert found.detail == f"6 VCPU of {CHILD}, 1024 MEMORY_MB of {CHILD}"

    healed = heal_database(database, OWNER)
    assert (healed.repaired, healed.remaining) == ([found], [])
    held = world.get(f"/resource_providers/{CHILD}/allocations")["allocations"]
    (adopted,) = held.keys() - {VOLUME}
    assert held[adopted]["resources"] == {"VCPU": 6, "MEMORY_MB": 1024}
    consumer = world.get(f"/allocations/{adopted}")
    assert (consumer["project_id"], consumer["user_id"]) == (OWNER.project_id, OWNER.user_id)
    body = {**consumer, "allocations": {}, "consumer_type": "INSTANCE"}
    assert world.put(f"/allocations/{adopted}", body) == 204
    assert world.get(f"/resource_providers/{CHILD}/usages")["usages"] == {"VCPU": 2, "MEMORY_MB": 0}


def test_new_consumers_come_after_an_adopted_one(damage, world, database):
    damage(
        "UPDATE allocations SET consumer_id = 1000 WHERE used = 2",
        f"DELETE FROM consumers WHERE uuid = '{VOLUME}'",
    )
    heal_database(database, OWNER)
    allocations = {CHILD: {"resources": {"MEMORY_MB": 1}}}
    body = {"allocations": allocations, "project_id": "p", "user_id": "u", "consumer_type": "INSTANCE"}
    assert world.put(f"/allocations/{uuid('c', 7)}", {**body, "consumer_generation": None}) == 204


def test_a_consumer_without_allocations_is_deleted_and_others_stay(damage, world, database):
    damage("DELETE FROM allocations WHERE used = 2")
    assert shown(findings(database)) == [(AuditProblem.NO_ALLOCATIONS, VOLUME, "of project red")]
    healed = heal_database(database, OWNER)
    assert (shown(healed.repaired), healed.remaining) == (
        [(AuditProblem.NO_ALLOCATIONS, VOLUME, "of project red")],
        [],
    )
    counts = world.get("/usages?project_id=red&consumer_type=all")["usages"]["all"]
    assert counts["consumer_count"] == 1


def test_wrong_roots_are_corrected_and_running_workers_see_it(damage, world, database):
    assert tree_of(world, ROOT) == {ROOT, CHILD, GRANDCHILD}
    other = f"(SELECT id FROM (SELECT id FROM resource_providers WHERE uuid = '{OTHER}') AS o)"
    damage(
        f"UPDATE resource_providers SET root_id = {other}, change_seq = 1000000 WHERE uuid = '{GRANDCHILD}'",
        f"UPDATE resource_providers SET root_id = {other}, change_seq = 1000000 WHERE uuid = '{OTHER}'",
        "UPDATE change_buckets SET counter = counter + 1000000",
    )
    assert tree_of(world, OTHER) == {OTHER, GRANDCHILD}
    generation = world.get(f"/resource_providers/{GRANDCHILD}")["generation"]

    assert shown(findings(database)) == [
        (AuditProblem.WRONG_ROOT, GRANDCHILD, f"should be {ROOT}"),
        (AuditProblem.WRONG_ROOT, OTHER, "should be itself"),
    ]
    healed = heal_database(database, OWNER)
    assert ([each.subject for each in healed.repaired], healed.remaining) == ([GRANDCHILD, OTHER], [])
    assert tree_of(world, ROOT) == {ROOT, CHILD, GRANDCHILD}
    assert tree_of(world, OTHER) == {OTHER}
    assert world.get(f"/resource_providers/{GRANDCHILD}")["generation"] == generation


def test_loops_of_parents_are_left_to_the_operator(damage, database):
    grandchild = f"(SELECT id FROM (SELECT id FROM resource_providers WHERE uuid = '{GRANDCHILD}') AS g)"
    damage(
        f"UPDATE resource_providers SET parent_id = {grandchild} WHERE uuid = '{CHILD}'",
        f"UPDATE resource_providers SET parent_id = 999 WHERE uuid = '{OTHER}'",
    )
    expected = [(AuditProblem.LOOP, CHILD), (AuditProblem.LOOP, GRANDCHILD), (AuditProblem.NO_PARENT, OTHER)]
    assert [(each.problem, each.subject) for each in findings(database)] == expected
    healed = heal_database(database, OWNER)
    assert healed.repaired == []
    assert [(each.problem, each.subject) for each in healed.remaining] == expected


def test_excessive_and_misplaced_allocations_are_named_and_stay(damage, world, database):
    damage(
        "UPDATE inventories SET total = 9, reserved = 2 WHERE total = 8",
        "DELETE FROM inventories WHERE total = 4096",
    )
    expected = [
        (AuditProblem.OVER_CAPACITY, CHILD, "VCPU: 8 used of 7"),
        (AuditProblem.NO_INVENTORY, CHILD, "MEMORY_MB: 1024 used, no inventory"),
    ]
    assert shown(findings(database)) == expected
    healed = heal_database(database, OWNER)
    assert (healed.repaired, shown(healed.remaining)) == ([], expected)
    assert world.get(f"/allocations/{SERVER}")["allocations"][CHILD]["resources"] == {
        "VCPU": 6,
        "MEMORY_MB": 1024,
    }


def test_usage_up_to_the_rounded_capacity_is_no_finding(damage, database):
    damage("UPDATE inventories SET total = 5, allocation_ratio = 1.7 WHERE total = 8")  # 8.5
    assert findings(database) == []


def test_a_dry_run_names_repairs_and_writes_nothing(damage, database):
    damage("DELETE FROM allocations WHERE used = 2", "DELETE FROM inventories WHERE total = 4096")
    before = findings(database)
    counters = database.position()
    healed = heal_database(database, OWNER, dry_run=True)
    assert [each.problem for each in healed.repaired] == [AuditProblem.NO_ALLOCATIONS]
    assert [each.problem for each in healed.remaining] == [AuditProblem.NO_INVENTORY]
    assert findings(database) == before
    assert database.position() == counters


def epoch(database):
    with database.read() as conn:
        query = sa.select(change_buckets.c.counter).where(change_buckets.c.id == buckets.EPOCH)
        return conn.execute(query).scalar_one()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM consumers",
        "DELETE FROM allocations WHERE used = 2",
        "UPDATE resource_providers SET root_id = id WHERE root_id IS NOT NULL",
    ],
)
def test_only_a_repair_with_changes_renews_the_epoch(damage, database, statement):
    damage(statement)
    before = epoch(database)
    assert heal_database(database, OWNER).repaired
    after = epoch(database)
    assert after != before
    assert not heal_database(database, OWNER).repaired
    assert epoch(database) == after


def test_a_consumer_that_claims_in_between_is_not_removed(damage, world, database, monkeypatch):
    damage("DELETE FROM allocations WHERE used = 2")
    found = findings(database)
    body = {"project_id": "red", "user_id": "ann", "consumer_type": "INSTANCE", "consumer_generation": 1}
    body["allocations"] = {CHILD: {"resources": {"VCPU": 1}}}
    assert world.put(f"/allocations/{VOLUME}", body) == 204
    late = iter([found])
    monkeypatch.setattr(
        "placement.maintenance.heal.audit.find_contradictions",
        lambda conn: next(late, None) or find_contradictions(conn),
    )
    healed = heal_database(database, OWNER)
    assert healed.remaining == []
    assert world.get(f"/allocations/{VOLUME}")["consumer_generation"] == 2


def test_a_provider_moved_in_between_gets_its_present_root(damage, world, database, monkeypatch):
    stale = DatabaseFinding(AuditProblem.WRONG_ROOT, 3, GRANDCHILD, f"should be {OTHER}")
    late = iter([[stale]])
    monkeypatch.setattr(
        "placement.maintenance.heal.audit.find_contradictions",
        lambda conn: next(late, None) or find_contradictions(conn),
    )
    heal_database(database, OWNER)
    assert world.get(f"/resource_providers/{GRANDCHILD}")["root_provider_uuid"] == ROOT


@pytest.fixture
def window(world):
    """A window of 3 VCPU that begins in an hour, on a provider without other consumers."""
    body = inventories_body(0, VCPU=8)
    assert world.put(f"/resource_providers/{OTHER}/inventories", body) == 200
    body = {"uuid": VOLUME.replace("c", "e"), "query": "resources=VCPU:3", "project_id": "red"}
    body |= {"user_id": "ann", "starts_at": after(3600), "expires_at": after(7200)}
    assert world.post("/ext/v1/reservations", body) == 201
    return body["uuid"]


def used_of_other(service):
    return service.get(f"/resource_providers/{OTHER}/usages")["usages"]["VCPU"]


@pytest.mark.parametrize(("held", "needed_text"), [(1, "1 held"), (7, "7 held"), (0, "0 held")])
def test_a_wrong_hold_gets_the_amount_that_windows_need(damage, window, world, database, held, needed_text):
    assert findings(database) == []
    if held:
        damage(f"UPDATE allocations SET used = {held} WHERE used = 3")
    else:
        uuid_of_hold = hold_uuid(OTHER)
        damage(
            "DELETE FROM allocations WHERE used = 3", f"DELETE FROM consumers WHERE uuid = '{uuid_of_hold}'"
        )
    expected = [(AuditProblem.WRONG_HOLD, OTHER, f"VCPU: {needed_text}, windows need 3")]
    assert shown(findings(database)) == expected
    assert shown(heal_database(database, OWNER, dry_run=True).repaired) == expected
    healed = heal_database(database, OWNER)
    assert (shown(healed.repaired), healed.remaining) == (expected, [])
    assert used_of_other(world) == 3


@pytest.mark.parametrize("seconds", [0, 3601])
@pytest.mark.parametrize(("total", "expected"), [(8, []), (6, ["VCPU: 7 used of 6"])])
def test_a_maintenance_is_no_usage_before_and_after_its_start(
    damage, window, world, database, database_url, seconds, total, expected
):
    taken = claim_body({OTHER: {"VCPU": 4}}, project_id="red", user_id="ann")
    assert world.put(f"/allocations/{uuid('c', 9)}", taken) == 204
    maintenance = {"maintenance_of": OTHER, "project_id": "ops", "user_id": "eve"}
    maintenance |= {"starts_at": after(3600), "expires_at": after(10_000)}
    assert world.post("/ext/v1/reservations", maintenance) == 201
    advance_clock(database_url, seconds)
    # a request lets the windows begin that are due
    assert used_of_other(world) == 4 + 3 + 8
    damage(
        f"UPDATE inventories SET total = {total} WHERE total = 8 AND provider_id IN"
        f" (SELECT id FROM resource_providers WHERE uuid = '{OTHER}')"
    )
    assert [each.detail for each in findings(database)] == expected


def test_a_hold_without_windows_is_removed(damage, window, world, database):
    damage("DELETE FROM planned_allocations", "DELETE FROM reservations")
    assert [each.problem for each in findings(database)] == [
        AuditProblem.NO_ALLOCATIONS,
        AuditProblem.WRONG_HOLD,
    ]
    assert heal_database(database, OWNER).remaining == []
    assert used_of_other(world) == 0
    assert world.answer(f"/resource_providers/{OTHER}/allocations").json["allocations"] == {}


def test_a_hold_that_is_too_large_since_a_window_has_ended_is_no_finding(
    window, world, database, database_url
):
    advance_clock(database_url, 7201)
    assert findings(database) == []
    assert heal_database(database, OWNER).repaired == []


def test_planned_allocations_without_a_window_are_cancelled(damage, window, world, database):
    damage("DELETE FROM reservations")
    assert shown(findings(database)) == [
        (AuditProblem.NO_WINDOW, window, "1 without a time"),
        (AuditProblem.WRONG_HOLD, OTHER, "VCPU: 3 held, windows need 0"),
    ]
    assert heal_database(database, OWNER).remaining == []
    assert used_of_other(world) == 0


@pytest.fixture
def used_window(window, world, database_url):
    """The window after its start, of which a claim uses all amounts."""
    advance_clock(database_url, 3601)
    claim = {"consumer_uuid": uuid("c", 7), "consumer_generation": None, "query": "resources=VCPU:3"}
    claim |= {"project_id": "red", "user_id": "ann", "consumer_type": "INSTANCE"}
    body = {"claims": [claim], "reservation": window, "ends_at": after(600)}
    assert world.post("/ext/v1/claims", body) == 201
    return window


def test_a_window_of_which_claims_use_all_is_no_finding(damage, used_window, world, database):
    assert findings(database) == []
    assert heal_database(database, OWNER).repaired == []
    # the hold keeps what a deleted claim gives back
    assert world.delete(f"/allocations/{uuid('c', 7)}") == 204
    assert findings(database) == []
    damage("UPDATE allocations SET used = 1 WHERE used = 3")
    assert shown(findings(database)) == [(AuditProblem.WRONG_HOLD, OTHER, "VCPU: 1 held, windows need 3")]
    assert heal_database(database, OWNER).remaining == []
    assert used_of_other(world) == 3


def test_promises_without_a_window_are_deleted(damage, used_window, world, database):
    damage("DELETE FROM reservations")
    assert shown(findings(database)) == [(AuditProblem.NO_WINDOW, used_window, "1 without a time")]
    assert heal_database(database, OWNER).remaining == []
    assert used_of_other(world) == 3


def test_a_repaired_hold_is_above_the_capacity_if_its_room_is_taken(damage, window, world, database):
    damage("UPDATE allocations SET used = 1 WHERE used = 3")
    taken = claim_body({OTHER: {"VCPU": 7}}, project_id="red", user_id="ann")
    assert world.put(f"/allocations/{uuid('c', 9)}", taken) == 204
    assert shown(heal_database(database, OWNER).remaining) == [
        (AuditProblem.OVER_CAPACITY, OTHER, "VCPU: 10 used of 8")
    ]
    assert used_of_other(world) == 10
