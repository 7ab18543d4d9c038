"""Tests of inserting rows that exist already, although they were taken for new: the client gets the usual
error.
"""

import threading

import pytest

from placement.db.database import ServiceDatabase
from placement.db.engine import PoolOptions
from placement.exceptions import ConcurrentUpdate, Conflict
from placement.store import allocations, providers
from tests.placement.store.builders import build_claim, read_holders

CONSUMER = "00000001-0000-4000-8000-00000000c0de"
OTHER = "00000002-0000-4000-8000-00000000c0de"
NEW_HOST = "00000002-0000-4000-8000-000000000000"


def hold_vcpus(database: ServiceDatabase, host: str, *consumers: str, amount: int = 1) -> None:
    claims = [build_claim(consumer, {host: {"VCPU": amount}}) for consumer in consumers]
    database.write(lambda tx: allocations.replace(tx, claims))


@pytest.mark.parametrize("amount", [1, 11], ids=["that fits", "that is too much"])
def test_an_existing_consumer_is_a_generation_conflict(
    database: ServiceDatabase, host: str, amount: int
) -> None:
    hold_vcpus(database, host, CONSUMER)
    with pytest.raises(ConcurrentUpdate, match="expected 1 but got None"):
        hold_vcpus(database, host, OTHER, CONSUMER, amount=amount)
    assert read_holders(database, host) == {CONSUMER: 1}


def test_an_existing_consumer_is_a_conflict_without_retries(database: ServiceDatabase, host: str) -> None:
    hold_vcpus(database, host, CONSUMER)
    without_retries = ServiceDatabase(database.url, PoolOptions(retries=0))
    try:
        with pytest.raises(ConcurrentUpdate, match="expected 1 but got None"):
            hold_vcpus(without_retries, host, CONSUMER)
        with pytest.raises(Conflict, match="name: host already exists"):
            without_retries.write(lambda tx: providers.create_provider(tx, NEW_HOST, "host", None))
    finally:
        without_retries.close()


def test_a_consumer_with_a_refused_claim_is_not_made(database: ServiceDatabase, host: str) -> None:
    with pytest.raises(Conflict, match="would exceed the capacity"):
        hold_vcpus(database, host, CONSUMER, OTHER, amount=6)
    assert read_holders(database, host) == {}
    hold_vcpus(database, host, CONSUMER, amount=6)
    assert read_holders(database, host) == {CONSUMER: 6}


def test_one_of_several_simultaneous_creations_of_a_consumer_succeeds(
    database: ServiceDatabase, host: str
) -> None:
    outcomes = []

    def attempt() -> None:
        try:
            hold_vcpus(database, host, CONSUMER)
            outcomes.append("claimed")
        except ConcurrentUpdate as error:
            outcomes.append(error.detail)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusal = "consumer generation conflict - expected 1 but got None"
    assert sorted(outcomes) == ["claimed", *[refusal] * 3]
    assert read_holders(database, host) == {CONSUMER: 1}


def test_a_taken_uuid_and_a_taken_name_have_different_errors(database: ServiceDatabase, host: str) -> None:
    with pytest.raises(Conflict, match=f"uuid: {host} already exists"):
        database.write(lambda tx: providers.create_provider(tx, host, "another", None))
    with pytest.raises(Conflict, match="name: host already exists"):
        database.write(lambda tx: providers.create_provider(tx, NEW_HOST, "host", None))
