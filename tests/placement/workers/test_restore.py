"""Tests of a database that is restored while workers run: they neither show nor write data that was lost."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from placement.db import buckets
from placement.db.database import ServiceDatabase
from placement.maintenance.audit import find_contradictions
from tests import databases
from tests.databases import DatabaseServer
from tests.databases.proxy import Proxy
from tests.placement.builders import inventories_body, make_provider, put_allocation
from tests.placement.moving_clock import advance_clock, after
from tests.placement.running import Admin, application
from tests.placement.sql import execute_sql
from tests.placement.workers.window_tables import find_broken_promises

HOSTS = [f"{number:08d}-0000-4000-8000-000000000000" for number in (1, 2, 3)]


@pytest.fixture
def workers(database_url: str) -> list[Admin]:
    """Two workers that have read three hosts of 60 VCPU. The first worker has also read the usage of the
    hosts.
    """
    workers = [Admin(application(database_url)) for _ in range(2)]
    for uuid in HOSTS:
        make_provider(workers[0], uuid, provider=uuid, VCPU=60)
    for worker in workers:
        assert read_used(worker) == [0, 0, 0]
    return workers


def answer_to_inventories(worker: Admin, uuid: str, generation: int, **totals: int) -> int:
    body = inventories_body(generation, **totals)
    return worker("PUT", f"/resource_providers/{uuid}/inventories", json=body).status_code


def hold_vcpus(worker: Admin, number: int, host: str, amount: int = 30) -> None:
    consumer = f"{number:08d}-0000-4000-8000-00000000c0de"
    answer = put_allocation(worker, {host: {"VCPU": amount}}, consumer)
    assert answer.status_code == 204, answer.text


def read_used(worker: Admin) -> list[int]:
    """Read the used VCPU of each host."""
    answers = [worker("GET", f"/resource_providers/{uuid}/usages").json for uuid in HOSTS]
    return [answer["usages"]["VCPU"] for answer in answers if answer]


def read_totals(worker: Admin, uuid: str) -> dict[str, int]:
    answer = worker("GET", f"/resource_providers/{uuid}/inventories").json
    return {name: each["total"] for name, each in (answer or {})["inventories"].items()}


def test_a_restored_bucket_with_the_same_count_of_usage_changes_is_detected(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    first, second = workers
    backup = database_server.backup(database_url)
    hold_vcpus(first, 1, HOSTS[0])
    assert read_used(first) == [30, 0, 0]
    database_server.restore(database_url, backup)
    hold_vcpus(second, 2, HOSTS[1])
    assert read_used(second) == [0, 30, 0]
    assert read_used(first) == [0, 30, 0]
    hold_vcpus(second, 3, HOSTS[1])
    assert read_used(first) == [0, 60, 0]


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_a_restored_bucket_with_a_higher_count_is_read_again(
    workers: list[Admin], database_server: DatabaseServer, database_url: str, changes: int
) -> None:
    first, second = workers
    twin = next(
        uuid
        for uuid in (f"{number:08d}-0000-4000-8000-0000000000aa" for number in range(10_000))
        if buckets.bucket_of(uuid) == buckets.bucket_of(HOSTS[0])
    )
    first("POST", "/resource_providers", json={"name": "twin", "uuid": twin})
    answer_to_inventories(first, twin, 0, VCPU=60)
    backup = database_server.backup(database_url)
    hold_vcpus(first, 1, HOSTS[0])
    answer_to_inventories(first, twin, 1, VCPU=40, DISK_GB=1)
    assert read_used(first) == [30, 0, 0]
    assert read_totals(first, twin) == {"VCPU": 40, "DISK_GB": 1}
    database_server.restore(database_url, backup)
    for number in range(changes):
        hold_vcpus(second, 10 + number, twin, amount=1)
    assert read_used(first) == [0, 0, 0]
    assert read_totals(first, twin) == {"VCPU": 60}


def test_a_name_is_not_stored_under_its_lost_number(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    first, second = workers
    backup = database_server.backup(database_url)
    assert first("PUT", "/resource_classes/CUSTOM_GOLD").status_code == 201
    assert answer_to_inventories(first, HOSTS[0], 1, CUSTOM_GOLD=7) == 200
    assert read_totals(first, HOSTS[0]) == {"CUSTOM_GOLD": 7}
    database_server.restore(database_url, backup)
    assert second("PUT", "/resource_classes/CUSTOM_LEAD").status_code == 201
    assert answer_to_inventories(first, HOSTS[0], 1, CUSTOM_GOLD=7) == 400
    assert second("PUT", "/resource_classes/CUSTOM_GOLD").status_code == 201
    assert answer_to_inventories(first, HOSTS[0], 1, CUSTOM_GOLD=7) == 200
    assert answer_to_inventories(first, HOSTS[1], 1, CUSTOM_LEAD=8) == 200
    for worker in workers:
        assert read_totals(worker, HOSTS[0]) == {"CUSTOM_GOLD": 7}
        assert read_totals(worker, HOSTS[1]) == {"CUSTOM_LEAD": 8}


def test_lost_names_are_not_listed(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    first, second = workers
    backup = database_server.backup(database_url)
    assert first("PUT", "/traits/CUSTOM_GONE").status_code == 201
    assert first("GET", "/traits/CUSTOM_GONE").status_code == 204
    database_server.restore(database_url, backup)
    assert second("PUT", "/traits/CUSTOM_NEW").status_code == 201
    assert first("GET", "/traits/CUSTOM_GONE").status_code == 404
    assert first("GET", "/traits/CUSTOM_NEW").status_code == 204


def test_names_of_this_version_missing_in_a_backup_are_created_again(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    first, _ = workers
    assert first("DELETE", f"/resource_providers/{HOSTS[0]}/inventories").status_code == 204
    old = ServiceDatabase(database_url)
    old.write(lambda tx: tx.conn.exec_driver_sql("DELETE FROM resource_classes WHERE name = 'LLC'").close())
    old.close()
    backup = database_server.backup(database_url)
    assert answer_to_inventories(first, HOSTS[0], 2, VCPU=1) == 200
    assert read_totals(first, HOSTS[0]) == {"VCPU": 1}
    database_server.restore(database_url, backup)
    assert read_totals(first, HOSTS[0]) == {}  # the worker detects the restore with this read
    assert answer_to_inventories(first, HOSTS[0], 2, LLC=11) == 200


def test_a_new_epoch_makes_every_worker_read_direct_changes_of_the_database(
    workers: list[Admin], database_url: str
) -> None:
    behind = ServiceDatabase(database_url)
    behind.write(lambda tx: tx.conn.exec_driver_sql("UPDATE inventories SET total = 99").close())
    assert read_totals(workers[0], HOSTS[0]) == {"VCPU": 60}  # no counter changed
    behind.write(lambda tx: tx.renew_epoch())
    for worker in workers:
        assert read_totals(worker, HOSTS[0]) == {"VCPU": 99}
    behind.close()


def counters(url: str) -> dict[str, list[tuple[int, ...]]]:
    """Read the change counters and the stamps of all providers."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    queries = {
        "counter": "SELECT counter, id FROM change_buckets ORDER BY id",
        "change_seq": "SELECT change_seq, id FROM resource_providers ORDER BY id",
    }
    with engine.connect() as conn:
        return {name: [tuple(row) for row in conn.exec_driver_sql(query)] for name, query in queries.items()}


def set_counters(url: str, found: dict[str, list[tuple[int, ...]]]) -> None:
    """Set counters and stamps to earlier values. In operation this would be an unlikely coincidence."""
    execute_sql(
        url,
        *(
            f"UPDATE change_buckets SET counter = {value} WHERE id = {bucket}"
            for value, bucket in found["counter"]
        ),
        *(
            f"UPDATE resource_providers SET change_seq = {stamp} WHERE id = {number}"
            for stamp, number in found["change_seq"]
        ),
    )


def history_with_the_same_counters(workers: list[Admin], url: str, restore: Callable[[], None]) -> None:
    """Restore the state before a claim of the first worker, and then make another claim with the second
    worker.
    """
    first, second = workers
    hold_vcpus(first, 1, HOSTS[0])
    assert read_used(first) == [30, 0, 0]
    seen = counters(url)
    restore()
    hold_vcpus(second, 2, HOSTS[1])
    set_counters(url, seen)
    assert counters(url) == seen


def test_a_new_epoch_reveals_a_history_with_the_same_counters(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    backup = database_server.backup(database_url)
    history_with_the_same_counters(
        workers, database_url, lambda: database_server.restore(database_url, backup)
    )
    operator = ServiceDatabase(database_url)
    operator.write(lambda tx: tx.renew_epoch())
    operator.close()
    for worker in workers:
        assert read_used(worker) == [0, 30, 0]


def test_restored_windows_have_their_room_again(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    first, second = workers
    body = {"query": "resources=VCPU:40", "project_id": "p", "user_id": "u", "allowed_hosts": [HOSTS[0]]}
    times = {"starts_at": after(3600), "expires_at": after(7200)}
    window = first("POST", "/ext/v1/reservations", json=body | times).json["reservation"]["uuid"]
    backup = database_server.backup(database_url)
    assert second("DELETE", f"/ext/v1/reservations/{window}").status_code == 204
    hold_vcpus(second, 1, HOSTS[0], 60)
    database_server.restore(database_url, backup)
    operator = ServiceDatabase(database_url)
    operator.write(lambda tx: tx.renew_epoch())
    with operator.read() as conn:
        assert find_contradictions(conn) == []
    operator.close()
    assert find_broken_promises(database_url) == []
    for worker in workers:
        assert read_used(worker) == [40, 0, 0]
        hold = {HOSTS[0]: {"VCPU": 21}}
        assert put_allocation(worker, hold).status_code == 409
    # the window ended while the database was away
    advance_clock(database_url, 7201)
    for worker in workers:
        assert read_used(worker) == [0, 0, 0]


def test_a_replaced_database_is_detected_with_any_counters(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    if database_server.kind == "mariadb":
        pytest.skip("MariaDB does not show that tables were created again; only counters and the epoch do")
    backup = database_server.backup(database_url)
    history_with_the_same_counters(
        workers, database_url, lambda: database_server.replace(database_url, backup)
    )
    for worker in workers:
        assert read_used(worker) == [0, 30, 0]


def test_no_worker_writes_to_a_replaced_database(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    backup = database_server.backup(database_url)
    hold_vcpus(workers[0], 1, HOSTS[0])
    database_server.replace(database_url, backup)
    for number, worker in enumerate(workers):
        hold_vcpus(worker, 2 + number, HOSTS[1])
    for worker in [*workers, Admin(application(database_url))]:
        assert read_used(worker) == [0, 60, 0]


def test_another_server_with_the_same_tables_and_counters_is_detected(
    workers: list[Admin], database_server: DatabaseServer, database_url: str
) -> None:
    """Another server gets the address of the database, as after a failover to a copy."""
    if database_server.kind == "sqlite":
        pytest.skip("SQLite has no server")
    with databases.create(database_server.kind) as other:
        copy = other.fresh_database()
        while make_url(copy).database != make_url(database_url).database:
            copy = other.fresh_database()
        other.replace(copy, database_server.backup(database_url))
        with Proxy(database_url) as address:
            worker = Admin(application(address.url))
            assert read_used(worker) == [0, 0, 0]
            hold_vcpus(workers[0], 1, HOSTS[0])
            seen = counters(database_url)
            assert read_used(worker) == [30, 0, 0]
            hold_vcpus(Admin(application(copy)), 2, HOSTS[1])
            set_counters(copy, seen)
            address.lead_to(copy)
            assert read_used(worker) == [0, 30, 0]
