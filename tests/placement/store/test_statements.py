"""Tests of the numbers of statements and batches in each kind of write."""

import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import RESERVATION
from placement.exceptions import InvalidRequest
from placement.store import (
    allocations,
    inventories,
    provider_properties,
    providers,
    reservation_changes,
    usages,
)
from placement.store.claims import ConsumerClaim
from placement.store.consumers import ConsumerOwnership
from placement.store.time_profile import TimeWindow
from tests.placement.store.builders import build_claim, inventory_values

CONSUMER = "00000001-0000-4000-8000-00000000c0de"
NEW_HOST = "00000002-0000-4000-8000-000000000000"
ABOVE = "00000003-0000-4000-8000-000000000000"
TEN = inventory_values(10)
Counted = Callable[[Callable[[WriteTransaction], object]], list[int]]


@pytest.fixture
def counted(database: ServiceDatabase, batch_sizes: list[int]) -> Counted:
    """Run a write with one attempt; return the number of statements in each batch that the write has sent."""

    def write(work: Callable[[WriteTransaction], object]) -> list[int]:
        batch_sizes.clear()
        database.write(work)
        return list(batch_sizes)

    return write


def claiming(host: str, generation: int | None = None, amount: int = 1) -> Callable[[WriteTransaction], None]:
    resources = {host: {"VCPU": amount, "DISK_GB": amount}}
    wanted = build_claim(CONSUMER, resources, generation)
    return lambda tx: allocations.replace(tx, [wanted])


def test_a_claim_of_a_new_consumer_takes_five_statements_in_two_batches(counted: Counted, host: str) -> None:
    # consumer, lock, supply; then allocations, generation
    assert counted(claiming(host)) == [3, 2]


def test_a_claim_of_a_known_consumer_takes_three_batches(counted: Counted, host: str) -> None:
    counted(claiming(host))
    # consumer, what it holds; lock, old allocations, supply; new allocations, consumer, generation
    assert counted(claiming(host, generation=1, amount=2)) == [2, 3, 3]


def test_a_release_takes_six_statements_in_two_batches(counted: Counted, host: str) -> None:
    counted(claiming(host))
    # the first exchange reads the consumer and its holdings; the second writes lock, allocations, consumer,
    # stamp
    assert counted(lambda tx: allocations.delete(tx, CONSUMER)) == [2, 4]


def test_a_window_of_the_provider_adds_no_statement_to_a_claim_without_an_end(
    database: ServiceDatabase, counted: Counted, host: str
) -> None:
    starts_at = time.time() + 3600
    owner = ConsumerOwnership("project", "user", RESERVATION)
    window = TimeWindow(starts_at, starts_at + 3600)
    booked = ConsumerClaim(NEW_HOST, {host: {"VCPU": 2}}, None, owner, window=window)

    def book(tx: WriteTransaction) -> None:
        allocations.replace(tx, [booked])
        end = reservation_changes.ReservationEnd(window.ends_at, None)
        reservation_changes.make_reservation(tx, NEW_HOST, None, end, starts_at)

    database.write(book)
    assert counted(claiming(host)) == [3, 2]
    assert counted(lambda tx: allocations.delete(tx, CONSUMER)) == [2, 4]


def test_a_root_provider_is_made_in_one_batch(counted: Counted) -> None:
    assert counted(lambda tx: providers.create_provider(tx, NEW_HOST, "new", None)) == [2]


def test_a_child_is_made_in_at_most_two_batches_at_any_depth(
    database: ServiceDatabase, counted: Counted, host: str
) -> None:
    most = 1 if database.write(lambda tx: tx.sends_at_once) else 2
    assert len(counted(lambda tx: providers.create_provider(tx, NEW_HOST, "child", host))) == most
    assert len(counted(lambda tx: providers.create_provider(tx, CONSUMER, "grandchild", NEW_HOST))) == most
    found = {}
    database.write(lambda tx: found.update(providers.find_providers(tx, [host, NEW_HOST, CONSUMER])))
    top, child, grandchild = (found[uuid] for uuid in (host, NEW_HOST, CONSUMER))
    assert (child.parent_id, child.root_id) == (top.id, top.id)
    assert (grandchild.parent_id, grandchild.root_id) == (child.id, top.id)


def test_the_root_of_a_new_provider_is_returned(database: ServiceDatabase, host: str) -> None:
    for uuid, parent, root in ((NEW_HOST, None, NEW_HOST), (CONSUMER, host, host), (ABOVE, CONSUMER, host)):
        told = database.write(
            lambda tx, uuid=uuid, parent=parent: providers.create_provider(tx, uuid, uuid, parent)
        )
        assert told() == root


def test_a_provider_with_an_unknown_parent_is_not_made(database: ServiceDatabase) -> None:
    with pytest.raises(InvalidRequest, match="parent provider UUID does not exist"):
        database.write(lambda tx: providers.create_provider(tx, CONSUMER, "child", NEW_HOST))
    assert database.write(lambda tx: providers.find_providers(tx, [CONSUMER])) == {}


@pytest.mark.parametrize(
    ("write", "most"),
    [
        (
            lambda tx, host: inventories.replace_all(tx, host, 1, {"VCPU": TEN, "DISK_GB": TEN, "PCPU": TEN}),
            2,
        ),
        (
            lambda tx, host: provider_properties.replace_traits(
                tx, host, 1, ["COMPUTE_NODE", "HW_CPU_X86_AVX2"]
            ),
            1,
        ),
        (lambda tx, host: provider_properties.replace_aggregates(tx, host, 1, [CONSUMER]), 1),
    ],
    ids=["inventories", "traits", "aggregates"],
)
def test_replacing_parts_of_a_provider_takes_at_most_two_batches(
    database: ServiceDatabase,
    counted: Counted,
    host: str,
    write: Callable[[WriteTransaction, str], object],
    most: int,
) -> None:
    at_once = database.write(lambda tx: tx.sends_at_once)
    assert len(counted(lambda tx: write(tx, host))) == (most if at_once else 2)


def test_the_usage_of_a_project_without_reservations_takes_two_statements(
    database: ServiceDatabase, host: str
) -> None:
    database.write(claiming(host))
    sent: list[str] = []
    with database.read() as conn:
        sa.event.listen(conn, "before_cursor_execute", lambda *args: sent.append(args[2]))
        usage = usages.read_project_usage(conn, "project", None)
    assert sum(usage.consumer_counts.values()) == 1
    assert len(sent) == 2
