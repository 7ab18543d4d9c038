"""Tests that the worked example in the documentation of `placement.store` is right."""

import pytest

from placement.exceptions import Conflict
from placement.read_model.provider import Inventory
from placement.store.claims import ClaimantHolding, ConsumerClaim, ProviderSupply, check_capacity
from placement.store.consumers import ANY_GENERATION
from tests.placement.store.builders import build_claim

VCPU = 0


def claim_vcpus(consumer: str, **amounts: int) -> ConsumerClaim:
    resources = {host: {"VCPU": amount} for host, amount in amounts.items()}
    return build_claim(consumer, resources, ANY_GENERATION)


def supply(provider_id: int, total: int, used_by_others: int = 0) -> ProviderSupply:
    inventory = Inventory(total, 0, 1, total, 1, 1.0)
    return ProviderSupply(provider_id, {VCPU: inventory}, {VCPU: used_by_others})


def test_one_consumer_moves_away_and_another_grows() -> None:
    supplies = {"host": supply(1, 8), "other": supply(2, 8)}
    holdings = [ClaimantHolding("a", 1, "host", VCPU, 5), ClaimantHolding("b", 1, "host", VCPU, 2)]
    check_capacity([claim_vcpus("a", other=5), claim_vcpus("b", host=4)], supplies, {"VCPU": VCPU}, holdings)


@pytest.mark.parametrize("amount", [1, 3, 4, 5])
def test_a_consumer_with_more_than_there_is_may_claim_as_much_again(amount: int) -> None:
    inventory = Inventory(3, 0, 1, 8, 1, 1.0)
    supplies = {"host": ProviderSupply(1, {VCPU: inventory}, {VCPU: 0})}
    asked, holdings = [claim_vcpus("b", host=amount)], [ClaimantHolding("b", 1, "host", VCPU, 4)]
    if amount <= 4:
        check_capacity(asked, supplies, {"VCPU": VCPU}, holdings)
    else:
        with pytest.raises(Conflict, match="exceed the capacity"):
            check_capacity(asked, supplies, {"VCPU": VCPU}, holdings)


def test_other_consumers_are_refused() -> None:
    with pytest.raises(Conflict, match="exceed the capacity"):
        check_capacity(
            [claim_vcpus("c", host=1)], {"host": supply(1, 3, used_by_others=4)}, {"VCPU": VCPU}, []
        )
