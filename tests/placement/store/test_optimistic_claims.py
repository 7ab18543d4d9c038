"""Tests of writing choices of the read model in one exchange with the database, if the choices are still
valid.
"""

from collections.abc import Callable

import pytest

from placement.db.database import ServiceDatabase, WriteTransaction
from placement.exceptions import ConcurrentUpdate
from placement.read_model.feed import ReadModel
from placement.read_model.provider import Provider
from placement.store import allocations, claim_commit, inventories, provider_properties, providers
from tests.placement.store.builders import build_claim, inventory_values

CONSUMERS = tuple(f"0000000{number}-0000-4000-8000-00000000c0de" for number in range(1, 4))
OTHER_HOST = "00000002-0000-4000-8000-000000000000"
FOUR = inventory_values(10, reserved=2, max_unit=4, allocation_ratio=0.5)
Write = Callable[[WriteTransaction], object]


@pytest.fixture
def chosen(database: ServiceDatabase, host: str) -> dict[str, Provider]:
    """The host of the choice, which has one VCPU used, and another host."""
    database.write(lambda tx: providers.create_provider(tx, OTHER_HOST, "other", None))
    database.write(lambda tx: inventories.replace_all(tx, OTHER_HOST, 0, {"VCPU": FOUR}))
    database.write(lambda tx: allocations.replace(tx, [build_claim(CONSUMERS[2], {host: {"VCPU": 1}})]))
    with ReadModel(database).fresh_view() as view:
        return {each.uuid: each for each in view.snapshot}


def bind(
    database: ServiceDatabase, chosen: dict[str, Provider], *resources: dict[str, dict[str, int]]
) -> None:
    claims = [
        build_claim(consumer, each, consumer_type="INSTANCE")
        for consumer, each in zip(CONSUMERS, resources, strict=False)
    ]
    database.write(lambda tx: claim_commit.commit_claims(tx, claims, chosen))


def used(database: ServiceDatabase, *hosts: str) -> list[dict[str, int]]:
    """The amounts that each consumer holds of each class of the hosts."""
    found = []
    for host in hosts:
        with database.read() as conn:
            held = allocations.of_providers(conn, [host])
        found.append({f"{each.consumer}/{each.resource_class}": each.used for each in held})
    return found


def test_the_whole_claim_is_sent_with_the_commit(
    database: ServiceDatabase, chosen: dict[str, Provider], host: str, batch_sizes: list[int]
) -> None:
    at_once = database.write(lambda tx: tx.sends_at_once)
    batch_sizes.clear()
    bind(database, chosen, {host: {"VCPU": 2, "DISK_GB": 3}, OTHER_HOST: {"VCPU": 4}})
    # consumer, lock, allocations, generations; or the same after reading
    assert (len(batch_sizes), batch_sizes[0]) == (1, 4) if at_once else len(batch_sizes) == 2
    one, third = CONSUMERS[0], CONSUMERS[2]
    assert used(database, host, OTHER_HOST) == [
        {f"{third}/VCPU": 1, f"{one}/VCPU": 2, f"{one}/DISK_GB": 3},
        {f"{one}/VCPU": 4},
    ]


def test_readers_see_the_claim(database: ServiceDatabase, chosen: dict[str, Provider], host: str) -> None:
    model = ReadModel(database)
    with model.fresh_view() as view:
        before = view.snapshot.providers[chosen[host].id].generation
    bind(database, chosen, {host: {"VCPU": 2, "DISK_GB": 3}})
    with model.fresh_view() as view:
        seen = view.snapshot.providers[chosen[host].id]
    assert (seen.used, seen.generation) == ({"VCPU": 3, "DISK_GB": 3}, before + 1)
    assert model.reread == 0


def test_several_claims_of_one_call_take_the_last_amounts(
    database: ServiceDatabase, chosen: dict[str, Provider], host: str
) -> None:
    bind(database, chosen, {host: {"VCPU": 4}}, {host: {"VCPU": 5}})
    assert sum(used(database, host)[0].values()) == 10


@pytest.mark.parametrize(
    "resources",
    [
        [{0: {"VCPU": 10}}],
        [{0: {"VCPU": 5}}, {0: {"VCPU": 5}}],
        [{0: {"VCPU": 1}, 1: {"VCPU": 5}}],
    ],
    ids=["one too much", "two together", "a larger portion than is given"],
)
def test_a_claim_without_room_loses_the_race(
    database: ServiceDatabase,
    chosen: dict[str, Provider],
    host: str,
    resources: list[dict[int, dict[str, int]]],
) -> None:
    names = (host, OTHER_HOST)
    with pytest.raises(claim_commit.LostRace):
        bind(database, chosen, *[{names[at]: each for at, each in some.items()} for some in resources])
    assert used(database, host, OTHER_HOST) == [{f"{CONSUMERS[2]}/VCPU": 1}, {}]


@pytest.mark.parametrize("changed", ["of which something is taken", "of which nothing is"])
def test_a_claim_on_a_changed_provider_loses_the_race(
    database: ServiceDatabase, chosen: dict[str, Provider], host: str, changed: str
) -> None:
    which = chosen[host if changed == "of which something is taken" else OTHER_HOST]
    database.write(
        lambda tx: provider_properties.replace_traits(tx, which.uuid, which.generation, ["HW_CPU_X86_AVX2"])
    )
    with pytest.raises(claim_commit.LostRace):
        bind(database, chosen, {host: {"VCPU": 1}})
    assert used(database, host) == [{f"{CONSUMERS[2]}/VCPU": 1}]


def test_a_claim_on_a_deleted_provider_loses_the_race(
    database: ServiceDatabase, chosen: dict[str, Provider], host: str
) -> None:
    database.write(lambda tx: providers.delete(tx, OTHER_HOST))
    with pytest.raises(claim_commit.LostRace):
        bind(database, chosen, {host: {"VCPU": 1}})


def test_amounts_released_meanwhile_may_be_taken(
    database: ServiceDatabase, chosen: dict[str, Provider], host: str
) -> None:
    database.write(lambda tx: allocations.delete(tx, CONSUMERS[2]))
    bind(database, chosen, {host: {"VCPU": 10}})
    assert used(database, host) == [{f"{CONSUMERS[0]}/VCPU": 10}]


def test_an_existing_consumer_is_a_generation_conflict(
    database: ServiceDatabase, chosen: dict[str, Provider], host: str
) -> None:
    bind(database, chosen, {host: {"VCPU": 1}})
    with pytest.raises(ConcurrentUpdate, match="expected 1 but got None"):
        bind(database, chosen, {host: {"VCPU": 1}})
