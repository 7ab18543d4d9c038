"""Tests of simultaneous claims of a provider with more usage than capacity: together they do not increase the
excess.
"""

import threading
from collections.abc import Sequence

from placement.db.database import ServiceDatabase
from placement.exceptions import Conflict
from placement.store import allocations, inventories
from placement.store.consumers import ANY_GENERATION
from tests.placement.store.builders import build_claim, inventory_values, read_holders

ONE, OTHER = (f"{number:08d}-0000-4000-8000-00000000c0de" for number in range(2))


def replace(database: ServiceDatabase, host: str, consumer: str, amount: int) -> None:
    claim = build_claim(consumer, {host: {"VCPU": amount}}, ANY_GENERATION)
    database.write(lambda tx: allocations.replace(tx, [claim]))


def leave_four(database: ServiceDatabase, host: str) -> None:
    with database.read() as conn:
        (generation,) = {each.provider_generation for each in allocations.of_providers(conn, [host])}
    four = inventory_values(4, max_unit=100)
    database.write(lambda tx: inventories.change_inventory(tx, host, generation, "VCPU", four))


def at_once(
    database: ServiceDatabase, host: str, attempts: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Send claims at the same time; return the accepted claims. The other claims would have exceeded the
    capacity.
    """
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


def test_amounts_released_by_one_claim_are_not_taken_by_another(database: ServiceDatabase, host: str) -> None:
    replace(database, host, ONE, 5)
    replace(database, host, OTHER, 5)
    leave_four(database, host)
    for amount in range(4, 0, -1):
        accepted = at_once(database, host, [(ONE, amount), (OTHER, 6), (OTHER, 6), (OTHER, 6)])
        assert accepted == [(ONE, amount)]
        assert read_holders(database, host) == {ONE: amount, OTHER: 5}


def test_released_amounts_of_one_consumer_are_not_restored(database: ServiceDatabase, host: str) -> None:
    replace(database, host, ONE, 10)
    leave_four(database, host)
    while (present := read_holders(database, host)[ONE]) > 4:
        accepted = at_once(
            database, host, [(ONE, amount) for amount in (present, present - 1, present, 1 + present)]
        )
        assert (ONE, present + 1) not in accepted
        assert read_holders(database, host) == {ONE: min(amount for _, amount in accepted)}
