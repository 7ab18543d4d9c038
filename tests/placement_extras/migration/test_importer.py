"""Tests of importing a database of OpenStack Placement. Its result is read through the REST API."""

import sqlite3

import pytest
import sqlalchemy as sa

from placement.db import buckets
from placement.db.tables import change_buckets, resource_classes, resource_providers, traits
from placement.exceptions import Conflict, InvalidRequest, Unavailable
from placement_extras.migration import importer
from placement_extras.migration.content import different_titles
from placement_extras.migration.stock_database import StockContent, open_source
from tests.placement.maintenance.conftest import OWNER, MaintainedService
from tests.placement_extras.migration import reference_world as world

SPELLED_BY_US = "bbbbbbbb-0000-4000-8000-000000000002"


def run(database, reference, **options):
    with open_source(reference.url, OWNER) as source:
        return importer.run(database, source, ["LLC"], **options)


def provider_count(database):
    with database.read() as conn:
        return conn.execute(sa.select(sa.func.count()).select_from(resource_providers)).scalar_one()


@pytest.fixture
def imported(service, database, reference):
    """A service on our database that has run before and after the import."""
    assert service.get("/resource_providers") == {"resource_providers": []}
    assert run(database, reference).copied
    return service


def test_a_running_worker_shows_every_provider_in_its_tree_with_its_generation(imported):
    shown = imported.get("/resource_providers")["resource_providers"]
    names = ("name", "uuid", "generation", "parent_provider_uuid", "root_provider_uuid")
    assert {tuple(each[name] for name in names) for each in shown} == {
        ("nfs", world.SHARING, 7, None, world.SHARING),
        ("host", world.HOST, 12, None, world.HOST),
        ("numa", world.NUMA, 3, world.HOST, world.HOST),
        ("device", world.DEVICE, 1, world.NUMA, world.HOST),
        (world.NAMELESS, world.NAMELESS, 0, None, world.NAMELESS),
    }


def test_an_import_renews_the_epoch(database, reference):
    def epoch():
        with database.read() as conn:
            query = sa.select(change_buckets.c.counter).where(change_buckets.c.id == buckets.EPOCH)
            return conn.execute(query).scalar_one()

    before = epoch()
    assert run(database, reference).copied
    assert abs(epoch() - before) > 1 << 32  # no counter grows by that much


def test_inventories_are_the_same(imported):
    inventories = {
        name: imported.get(f"/resource_providers/{name}/inventories")
        for name in (world.SHARING, world.NUMA, world.DEVICE)
    }
    values = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")
    assert inventories == {
        provider: {
            "resource_provider_generation": generation,
            "inventories": {name: dict(zip(values, numbers, strict=True))},
        }
        for provider, generation, name, numbers in (
            (world.SHARING, 7, "DISK_GB", (2_000_000_000, 10, 5, 1000, 5, 1.25)),
            (world.NUMA, 3, "VCPU", (16, 0, 1, 16, 1, 16.0)),
            (world.DEVICE, 1, "CUSTOM_GOLD", (8, 0, 1, 8, 1, 1.0)),
        )
    }


def test_traits_and_aggregates_are_the_same(imported):
    of_numa = imported.get(f"/resource_providers/{world.NUMA}/traits")["traits"]
    assert sorted(of_numa) == ["CUSTOM_FAST", "HW_CPU_X86_AVX2"]
    assert imported.get(f"/resource_providers/{world.SHARING}/traits")["traits"] == [
        "MISC_SHARES_VIA_AGGREGATE"
    ]
    assert imported.get("/traits?name=startswith:CUSTOM_")["traits"] == ["CUSTOM_FAST", "CUSTOM_UNUSED"]
    assert imported.get(f"/resource_providers/{world.SHARING}/aggregates")["aggregates"] == [world.POOL]
    host = imported.get(f"/resource_providers/{world.HOST}/aggregates")["aggregates"]
    assert sorted(host) == sorted([world.POOL, SPELLED_BY_US])


def test_classes_keep_their_order_with_the_custom_ones_last(imported):
    names = [each["name"] for each in imported.get("/resource_classes")["resource_classes"]]
    assert names[:3] == ["VCPU", "MEMORY_MB", "DISK_GB"]
    assert names[-2:] == ["CUSTOM_GOLD", "CUSTOM_SILVER"]


@pytest.mark.parametrize(
    ("consumer", "expected"),
    [
        (
            world.SERVER,
            {
                "allocations": {
                    world.NUMA: {"generation": 3, "resources": {"VCPU": 4}},
                    world.HOST: {"generation": 12, "resources": {"MEMORY_MB": 2048}},
                    world.SHARING: {"generation": 7, "resources": {"DISK_GB": 20}},
                },
                "project_id": "red",
                "user_id": "ann",
                "consumer_generation": 5,
                "consumer_type": "INSTANCE",
            },
        ),
        (
            world.UNTYPED,
            {
                "allocations": {world.DEVICE: {"generation": 1, "resources": {"CUSTOM_GOLD": 3}}},
                "project_id": "blue",
                "user_id": "ann",
                "consumer_generation": 2,
                "consumer_type": "unknown",
            },
        ),
        (
            world.UNRECORDED,
            {
                "allocations": {world.SHARING: {"generation": 7, "resources": {"DISK_GB": 5}}},
                "project_id": OWNER.project_id,
                "user_id": OWNER.user_id,
                "consumer_generation": 0,
                "consumer_type": "unknown",
            },
        ),
        (world.EMPTY, {"allocations": {}}),
    ],
    ids=["typed", "without type, two rows of one class", "without record", "without allocations"],
)
def test_consumers_hold_what_they_held_with_owner_type_and_generation(imported, consumer, expected):
    assert imported.get(f"/allocations/{consumer}") == expected


def test_usages_are_the_same(imported):
    assert imported.get("/usages?project_id=red") == {
        "usages": {
            "INSTANCE": {"consumer_count": 1, "VCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 20},
            "MIGRATION": {"consumer_count": 1, "VCPU": 2},
        }
    }
    assert imported.get(f"/resource_providers/{world.NUMA}/usages")["usages"] == {"VCPU": 6}


def test_candidates_come_from_nested_and_sharing_providers(imported):
    answer = imported.get("/allocation_candidates?resources=VCPU:1,MEMORY_MB:512,DISK_GB:5")
    (candidate,) = answer["allocation_requests"]
    assert candidate["allocations"] == {
        world.NUMA: {"resources": {"VCPU": 1}},
        world.HOST: {"resources": {"MEMORY_MB": 512}},
        world.SHARING: {"resources": {"DISK_GB": 5}},
    }


def test_times_of_change_are_the_same(imported):
    changed = imported.last_modified(f"/resource_providers/{world.NUMA}")
    assert changed == "Sun, 01 Jun 2025 00:00:30 GMT"
    # rows that were never updated have the time of their creation
    assert imported.last_modified(f"/allocations/{world.SERVER}") == "Thu, 29 Feb 2024 12:00:00 GMT"


def test_the_service_continues_with_the_generations_of_the_other(imported):
    assert imported.post("/resource_providers", {"name": "new", "uuid": world.uuid("a", 99)}) == 200
    allocation = {
        "allocations": {world.NUMA: {"resources": {"VCPU": 1}}},
        "project_id": "red",
        "user_id": "ann",
        "consumer_type": "INSTANCE",
    }
    stale = f"/allocations/{world.SERVER}"
    assert imported.put(stale, {**allocation, "consumer_generation": 4}) == 409
    assert imported.put(stale, {**allocation, "consumer_generation": 5}) == 204
    assert (
        imported.put(f"/allocations/{world.uuid('c', 99)}", {**allocation, "consumer_generation": None})
        == 204
    )


def test_a_second_import_changes_nothing(imported, database, reference):
    before = imported.get("/resource_providers")
    outcome = run(database, reference)
    assert not outcome.copied
    assert different_titles(outcome.comparison) == []
    assert imported.get("/resource_providers") == before


def test_a_new_worker_shows_the_same_as_a_running_one(imported, database_url):
    fresh = MaintainedService(database_url)
    for path in (
        "/resource_providers",
        "/resource_classes",
        "/traits",
        f"/resource_providers?in_tree={world.NUMA}",
    ):
        assert fresh.get(path) == imported.get(path)


def test_a_database_with_other_content_is_left_alone(service, database, reference):
    assert service.post("/resource_providers", {"name": "mine", "uuid": world.uuid("a", 50)}) == 200
    with pytest.raises(
        Conflict, match=r"is not empty, and not the same as the source(.|\n)*resource providers"
    ):
        run(database, reference)
    assert [each["name"] for each in service.get("/resource_providers")["resource_providers"]] == ["mine"]


def test_a_source_that_changed_since_is_not_the_same(imported, database, reference):
    reference.execute("UPDATE inventories SET allocation_ratio = 4.0 WHERE resource_class_id = 0")
    with pytest.raises(Conflict, match=r"not the same as the source(.|\n)*inventories"):
        run(database, reference)


def test_standard_classes_that_the_source_does_not_list_count_by_their_position(
    service, database, reference_of
):
    reference = reference_of(consumer_types=False)
    reference.fill(standard_classes=False)
    run(database, reference)
    assert service.get(f"/resource_providers/{world.NUMA}/usages")["usages"] == {"VCPU": 6}
    consumer = service.get(f"/allocations/{world.SERVER}")
    assert (consumer["consumer_type"], consumer["consumer_generation"]) == ("unknown", 5)


def test_corrections_are_reported_before_the_import(reference):
    with open_source(reference.url, OWNER) as source:
        assert importer.examine_source(source) == [
            f"root provider set right: numa ({world.NUMA})",
            "consumer without a record, gets generation 0, and project and user of [placement]"
            f" incomplete_consumer_*: {world.UNRECORDED}",
        ]


def test_rows_that_refer_to_missing_rows_are_left_behind_only_on_demand(database, service, reference):
    reference.allocate((99, world.SERVER, world.VCPU, 7), (9, world.SERVER, 5555, 3))
    with pytest.raises(Conflict) as refused:
        run(database, reference)
    assert "of 7: there is no resource provider number 99" in str(refused.value)
    assert "of 3: there is no resource class number 5555" in str(refused.value)
    assert provider_count(database) == 0
    outcome = run(database, reference, skip_orphans=True)
    assert sum(note.startswith("not copied: allocation number") for note in outcome.notes) == 2
    assert service.get(f"/resource_providers/{world.NUMA}/usages")["usages"] == {"VCPU": 6}


def test_trees_with_a_loop_are_refused_by_name(database, reference):
    reference.execute("UPDATE resource_providers SET parent_provider_id = 4 WHERE id = 9")
    with pytest.raises(Conflict, match=r"are below themselves(.|\n)*device \(.*\n.*numa \(") as refused:
        run(database, reference, skip_orphans=True)
    assert "host" not in str(refused.value)
    assert provider_count(database) == 0


def test_a_parent_that_does_not_exist_is_refused_with_the_names_of_all_below(database, reference_of):
    reference = reference_of(foreign_keys=False)
    reference.fill()
    reference.execute("DELETE FROM resource_providers WHERE id = 5")
    with pytest.raises(Conflict, match=r"have a parent that does not exist(.|\n)*device \(.*(.|\n)*numa \("):
        run(database, reference, skip_orphans=True)


def test_a_row_that_is_lost_during_the_copy_undoes_the_import(database, reference, monkeypatch):
    all_rows = StockContent.rows

    def without_first(self, table):
        rows = all_rows(self, table)
        if table == "allocations":
            next(rows)
        return rows

    monkeypatch.setattr(StockContent, "rows", without_first)
    with pytest.raises(Conflict, match=r"nothing is changed(.|\n)*allocations of"):
        run(database, reference)
    assert provider_count(database) == 0
    with database.read() as conn:
        for table in (resource_classes, traits):
            assert conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() == 0


UNUSABLE = {
    "a consumer that is not a uuid": (
        ["UPDATE consumers SET uuid = 'me' WHERE id = 21", "UPDATE allocations SET consumer_id = 'me'"],
        "consumer 'me': that is not a uuid",
    ),
    "a provider that is not a uuid": (
        ["UPDATE resource_providers SET uuid = 'compute1' WHERE id = 11"],
        "resource provider 'compute1': that is not a uuid",
    ),
    "an aggregate that is not a uuid": (
        ["UPDATE placement_aggregates SET uuid = 'zone' WHERE id = 1"],
        "aggregate 'zone': that is not a uuid",
    ),
    "two spellings of a provider": (
        [f"UPDATE resource_providers SET uuid = '{world.SHARING.replace('-', '').upper()}' WHERE id = 11"],
        f"the same uuid as {world.SHARING}, in another spelling",
    ),
    "two spellings of a consumer": (
        [
            f"UPDATE consumers SET uuid = '{world.SERVER.replace('-', '')}' WHERE id = 22",
            f"UPDATE allocations SET consumer_id = '{world.SERVER.replace('-', '')}'"
            f" WHERE consumer_id = '{world.MIGRATION}'",
        ],
        "in another spelling",
    ),
    "the uuid of a provider without a name": (
        [f"UPDATE resource_providers SET name = '{world.NAMELESS}' WHERE id = 3"],
        f"{world.NAMELESS!r} is the name of {world.SHARING}, too",
    ),
    "amounts that add up to too much": (
        ["UPDATE allocations SET used = 2000000000 WHERE resource_provider_id = 4"],
        f"4000000000 CUSTOM_GOLD of resource provider number 4 for {world.UNTYPED}: too much",
    ),
}


@pytest.mark.parametrize(("statements", "named"), UNUSABLE.values(), ids=UNUSABLE)
def test_content_that_our_tables_cannot_hold_is_named_before_the_first_write(
    database, reference, statements, named
):
    reference.execute(*statements)
    for action in (lambda: run(database, reference), lambda: look(reference)):
        with pytest.raises(Conflict) as refused:
            action()
        assert named in str(refused.value)
        assert "nothing is changed. Repair it there" in str(refused.value)
    assert provider_count(database) == 0


def look(reference):
    """Check the database as a dry run does."""
    with open_source(reference.url, OWNER) as source:
        importer.examine_source(source)


def test_consumers_of_a_missing_owner_are_reported(database, reference):
    reference.execute("DELETE FROM projects WHERE id = 2", "DELETE FROM users WHERE id = 2")
    outcome = run(database, reference)
    named = {note.rsplit(" ", 1)[1] for note in outcome.notes if "with a missing project or user" in note}
    assert named == {world.MIGRATION, world.UNTYPED}


def test_our_own_database_is_refused_as_a_source(database, database_url):
    with (
        pytest.raises(InvalidRequest, match=r"not a database of OpenStack Placement .* table \w+ lacks"),
        open_source(database_url, OWNER),
    ):
        pass


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("sqlite:////nowhere/placement.sqlite", InvalidRequest, "There is no SQLite database /nowhere"),
        ("placement", InvalidRequest, "URL cannot be used"),
        ("strange://host/placement", InvalidRequest, "URL cannot be used"),
        ("mysql+pymysql://someone@127.0.0.1:9/placement", Unavailable, "cannot be read"),
        ("postgresql+psycopg://someone@127.0.0.1:9/placement", Unavailable, "cannot be read"),
    ],
)
def test_a_source_that_cannot_be_opened_is_named(url, error, message):
    with pytest.raises(error, match=message), open_source(url, OWNER):
        pass


def test_a_source_on_sqlite_is_not_written_to(tmp_path):
    path = tmp_path / "reference.sqlite"
    reference = world.ReferenceDatabase(f"sqlite:///{path}")
    reference.fill()
    before = path.read_bytes()
    with open_source(reference.url, OWNER) as source:
        source.table_fingerprints()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            source.conn.connection.execute("DELETE FROM traits")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["reference.sqlite"]
