"""Claims of a provider of which more is used than there is, at once: together they make it no worse."""

import threading
from collections.abc import Sequence

from placement.db.database import ServiceDatabase
from placement.exceptions import Conflict
from placement.store import allocations, inventories
from placement.store.claims import ConsumerClaim
from placement.store.consumers import ANY_GENERATION, ConsumerOwnership
from placement.store.inventories import InventoryValues

ONE, OTHER = (f"{number:08d}-0000-4000-8000-00000000c0de" for number in range(2))
OWNER = ConsumerOwnership("project", "user", None)


def replace(database: ServiceDatabase, host: str, consumer: str, amount: int) -> None:
    claim = ConsumerClaim(consumer, {host: {"VCPU": amount}}, ANY_GENERATION, OWNER)
    database.write(lambda tx: allocations.replace(tx, [claim]))


def leave_four(database: ServiceDatabase, host: str) -> None:
    with database.read() as conn:
        (generation,) = {each.provider_generation for each in allocations.of_provider(conn, host)}
    values = InventoryValues(total=4, reserved=0, min_unit=1, max_unit=100, step_size=1, allocation_ratio=1.0)
    database.write(lambda tx: inventories.change(tx, host, generation, "VCPU", values))


def at_once(
    database: ServiceDatabase, host: str, attempts: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Those of the claims that were accepted; the others would have exceeded the capacity."""
    accepted: list[tuple[str, int]] = []
    refusals: list[str] = []
    barrier = threading.Barrier(len(attempts))

    def attempt(consumer: str, amount: int) -> None:
        barrier.wait(10)
        try:
            replace(database, host, consumer, amount)
            accepted.append((consumer, amount))
        except Conflict as error:
            refusals.append(error.detail)

    threads = [threading.Thread(target=attempt, args=each) for each in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("would exceed the capacity" in detail for detail in refusals)
    assert len(accepted) + len(refusals) == len(attempts)
    return accepted


def held(database: ServiceDatabase, host: str) -> dict[str, int]:
    with database.read() as conn:
        return {each.consumer: each.used for each in allocations.of_provider(conn, host)}


def test_what_one_gives_back_is_not_taken_by_another(database: ServiceDatabase, host: str) -> None:
    replace(database, host, ONE, 5)
    replace(database, host, OTHER, 5)
    leave_four(database, host)
    for amount in range(4, 0, -1):
        accepted = at_once(database, host, [(ONE, amount), (OTHER, 6), (OTHER, 6), (OTHER, 6)])
        assert accepted == [(ONE, amount)]
        assert held(database, host) == {ONE: amount, OTHER: 5}


def test_of_one_consumer_nobody_restores_what_has_been_given_back(
    database: ServiceDatabase, host: str
) -> None:
    replace(database, host, ONE, 10)
    leave_four(database, host)
    while (present := held(database, host)[ONE]) > 4:
        accepted = at_once(
            database, host, [(ONE, amount) for amount in (present, present - 1, present, 1 + present)]
        )
        assert (ONE, present + 1) not in accepted
        assert held(database, host) == {ONE: min(amount for _, amount in accepted)}
