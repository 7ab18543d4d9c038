"""Tests of providers with more usage than capacity: requests that do not increase the excess are accepted,
all others refused.

A request that replaces allocations is refused if, for a class of a provider that it names, the usage
afterwards exceeds both the capacity and the usage before.
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.placement.builders import claim_body, inventories_body, make_provider
from tests.placement.running import Admin

EXCEEDED = "The requested amount would exceed the capacity."
Amounts = dict[str, dict[str, int]]


@dataclass
class Situation:
    """The providers and consumers of one test, with their expected state."""

    admin: Admin
    providers: list[str] = field(default_factory=lambda: [str(uuid4()) for _ in range(2)])
    consumers: list[str] = field(default_factory=lambda: [str(uuid4()) for _ in range(3)])
    capacities: Amounts = field(default_factory=dict)
    held: dict[str, Amounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for provider in self.providers:
            make_provider(self.admin, provider, provider=provider)
            self.describe(provider, {"VCPU": 8, "DISK_GB": 8})

    def inventories(self, provider: str, totals: dict[str, int]) -> dict[str, Any]:
        shown = self.admin("GET", f"/resource_providers/{provider}").json
        return inventories_body(shown["generation"], **totals)

    def describe(self, provider: str, totals: dict[str, int]) -> None:
        """Replace the inventories of a provider."""
        body = self.inventories(provider, totals)
        answer = self.admin("PUT", f"/resource_providers/{provider}/inventories", json=body)
        assert answer.status_code == 200, answer.text
        self.capacities[provider] = dict(totals)

    def claim(self, wanted: dict[str, Amounts], *, one_by_one: bool = False) -> tuple[int, str]:
        """Replace allocations; return status and text of the answer. With `one_by_one`, send a PUT for a
        single consumer.
        """
        bodies = {consumer: self._body(consumer, amounts) for consumer, amounts in wanted.items()}
        if one_by_one and len(bodies) == 1:
            ((consumer, body),) = bodies.items()
            answer = self.admin("PUT", f"/allocations/{consumer}", json=body)
        else:
            answer = self.admin("POST", "/allocations", json=bodies)
        return answer.status_code, answer.text

    def reshape(self, totals: Amounts, wanted: dict[str, Amounts]) -> tuple[int, str]:
        """Send a reshape; return status and text of the answer."""
        body = {
            "inventories": {provider: self.inventories(provider, each) for provider, each in totals.items()},
            "allocations": {consumer: self._body(consumer, amounts) for consumer, amounts in wanted.items()},
        }
        answer = self.admin("POST", "/reshaper", json=body)
        return answer.status_code, answer.text

    def _body(self, consumer: str, amounts: Amounts) -> dict[str, Any]:
        generation = self.admin("GET", f"/allocations/{consumer}").json.get("consumer_generation")
        return claim_body(amounts, generation)

    def expect(self, capacities: Amounts, wanted: dict[str, Amounts]) -> int:
        """Return the status that the rule demands; if it is a success, apply the request to the expected
        state.
        """
        after = {**self.held, **wanted}
        worse = any(
            _used(after, provider, name) > capacities[provider][name]
            and _used(after, provider, name) > _used(self.held, provider, name)
            for amounts in wanted.values()
            for provider, resources in amounts.items()
            for name in resources
        )
        if not worse:
            self.capacities, self.held = capacities, after
        return 409 if worse else 204

    def shown(self) -> dict[str, Amounts]:
        """The allocations of each consumer, read from the service."""
        everything = {}
        for consumer in self.consumers:
            allocations = self.admin("GET", f"/allocations/{consumer}").json["allocations"]
            everything[consumer] = {
                provider: dict(each["resources"]) for provider, each in allocations.items()
            }
        return everything


def _used(held: dict[str, Amounts], provider: str, name: str) -> int:
    return sum(amounts.get(provider, {}).get(name, 0) for amounts in held.values())


TOTALS = st.fixed_dictionaries({"VCPU": st.integers(1, 8), "DISK_GB": st.integers(1, 8)})
RESOURCES = st.dictionaries(st.sampled_from(["VCPU", "DISK_GB"]), st.integers(1, 6), min_size=1)
AMOUNTS = st.dictionaries(st.integers(0, 1), RESOURCES)
WANTED = st.dictionaries(st.integers(0, 2), AMOUNTS, min_size=1)
STEPS = st.one_of(
    st.tuples(st.just("describe"), st.integers(0, 1), TOTALS),
    st.tuples(st.just("claim"), WANTED, st.booleans()),
    st.tuples(st.just("claim"), WANTED, st.booleans()),
    st.tuples(st.just("reshape"), st.dictionaries(st.integers(0, 1), TOTALS, min_size=1), WANTED),
)


@settings(
    max_examples=examples(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, min_size=4, max_size=16))
def test_a_request_is_accepted_exactly_if_it_does_not_increase_overcommitment(
    admin: Admin, steps: list[Any]
) -> None:
    situation = Situation(admin)

    def named(wanted: dict[int, dict[int, dict[str, int]]]) -> dict[str, Amounts]:
        return {
            situation.consumers[consumer]: {
                situation.providers[number]: each for number, each in amounts.items()
            }
            for consumer, amounts in wanted.items()
        }

    for kind, *step in steps:
        if kind == "describe":
            situation.describe(situation.providers[step[0]], step[1])
        elif kind == "claim":
            wanted = named(step[0])
            status, text = situation.claim(wanted, one_by_one=step[1])
            assert status == situation.expect(situation.capacities, wanted), text
        else:
            totals = {situation.providers[number]: each for number, each in step[0].items()}
            wanted = named(step[1])
            status, text = situation.reshape(totals, wanted)
            assert status == situation.expect({**situation.capacities, **totals}, wanted), text
    assert situation.shown() == {
        consumer: situation.held.get(consumer, {}) for consumer in situation.consumers
    }


def test_a_guest_can_leave_an_overcommitted_provider(admin: Admin) -> None:
    situation = Situation(admin)
    source, target = situation.providers
    guest, migration, _ = situation.consumers
    assert situation.claim({guest: {source: {"VCPU": 8}}})[0] == 204
    situation.describe(source, {"VCPU": 4, "DISK_GB": 8})
    # as in Nova, the migration takes over the guest's allocation, and the guest gets the allocation that it
    # will need
    assert situation.claim({guest: {target: {"VCPU": 8}}, migration: {source: {"VCPU": 8}}}) == (204, "")
    assert situation.shown() == {guest: {target: {"VCPU": 8}}, migration: {source: {"VCPU": 8}}, _: {}}
    # and back, when the migration has failed
    assert situation.claim({guest: {source: {"VCPU": 8}}, migration: {}}) == (204, "")
    status, text = situation.claim({guest: {source: {"VCPU": 8}}, migration: {source: {"VCPU": 1}}})
    assert (status, EXCEEDED in text) == (409, True)


def test_overcommitment_by_others_does_not_allow_a_consumer_more(admin: Admin) -> None:
    situation = Situation(admin)
    host, _ = situation.providers
    one, other, _ = situation.consumers
    assert situation.claim({one: {host: {"VCPU": 5}}, other: {host: {"VCPU": 3}}})[0] == 204
    situation.describe(host, {"VCPU": 4, "DISK_GB": 8})
    for wanted, status in [
        ({one: {host: {"VCPU": 6}}}, 409),  # 9 of 4
        ({one: {host: {"VCPU": 3}}}, 204),  # 6 of 4, where 8 were
        ({one: {host: {"VCPU": 4}}}, 409),  # 7 of 4: the earlier 8 do not count
        ({one: {host: {"VCPU": 2}}, other: {host: {"VCPU": 4}}}, 204),  # from one to the other
        ({one: {host: {"VCPU": 2, "DISK_GB": 8}}}, 204),  # of another class there is enough
        ({one: {host: {"VCPU": 2}}, other: {}}, 204),
        ({one: {host: {"VCPU": 4}}}, 204),  # all that there is
        ({one: {host: {"VCPU": 5}}}, 409),
    ]:
        answered, text = situation.claim(wanted, one_by_one=True)
        assert answered == status, (wanted, text)


def test_allocation_limits_apply_on_overcommitted_providers(admin: Admin) -> None:
    situation = Situation(admin)
    host, _ = situation.providers
    guest, *_ = situation.consumers
    assert situation.claim({guest: {host: {"VCPU": 8}}})[0] == 204
    body = situation.inventories(host, {"VCPU": 4})
    body["inventories"]["VCPU"]["max_unit"] = 6
    assert admin("PUT", f"/resource_providers/{host}/inventories", json=body).status_code == 200
    status, text = situation.claim({guest: {host: {"VCPU": 8}}})
    assert (status, "would violate inventory constraints" in text) == (409, True)
    assert situation.claim({guest: {host: {"VCPU": 6}}}) == (204, "")
