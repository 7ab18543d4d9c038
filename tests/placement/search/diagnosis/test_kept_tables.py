"""Explanations after random changes, from kept tables, compared with those of a fresh snapshot."""

import json
import random
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import SHARES, Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.diagnosis.explanation import explain_request
from placement.search.diagnosis.sentences import explanation_document
from placement.search.request import CandidatesRequest
from tests.examples import examples
from tests.placement.search.snapshots import Spec, build, name_to_uuid
from tests.placement.search.strategies import AGGREGATES, CLASSES, TRAITS, requests

LARGEST = 2**31 - 1
RATIOS = [1.0, 1.0, 2.0, 0.1, 1e-30, 3.4e38]


def random_inventory(rng: random.Random) -> Inventory:
    """An inventory with few different numbers, among them the smallest and the largest possible ones."""
    total = rng.choice([1, 2, 3, 4, 6, LARGEST])
    if rng.random() < 0.6:
        return Inventory(total, 0, 1, LARGEST, 1, 1.0)
    least, most, step = (rng.choice([1, 1, 2, 3, LARGEST]) for _ in range(3))
    return Inventory(total, rng.choice([0, 1, total]), least, most, step, rng.choice(RATIOS))


@dataclass
class ChangingCloud:
    """Providers in one snapshot that follows their changes."""

    rng: random.Random
    providers: dict[int, Provider] = field(default_factory=dict)
    snapshot: ModelSnapshot = field(default_factory=ModelSnapshot)
    last: int = 0

    def fresh_snapshot(self) -> ModelSnapshot:
        return ModelSnapshot(self.providers.values())

    def change(self) -> None:
        actions: list[Callable[[Provider], None]] = [
            *[self.use, self.offer] * 3,
            *[self.describe, self.move] * 2,
            *[self.remove, self.add_child],
        ]
        if not self.providers or self.rng.random() < 0.15:
            self.add_root()
        else:
            self.rng.choice(actions)(self.rng.choice(list(self.providers.values())))
        if self.rng.random() < 0.2:
            self.snapshot = self.snapshot.copy()

    def put(self, provider: Provider) -> None:
        self.providers[provider.id] = provider
        self.snapshot.put(provider)

    def add_root(self) -> None:
        self.last += 1
        self.put(self.made(None, self.last))

    def add_child(self, parent: Provider) -> None:
        self.last += 1
        self.put(self.made(parent.id, parent.root_id))

    def made(self, parent: int | None, root: int) -> Provider:
        name = f"cn{self.rng.randint(0, 99)}"
        uuid = name_to_uuid(str(self.last))
        values = self.inventories(), {}, *self.marks()
        return Provider(self.last, uuid, name, 0, parent, root, 0.0, *values)

    def inventories(self) -> dict[str, Inventory]:
        return {name: random_inventory(self.rng) for name in CLASSES if self.rng.random() < 0.6}

    def marks(self) -> tuple[frozenset[str], frozenset[str]]:
        traits = frozenset(each for each in TRAITS if self.rng.random() < 0.3)
        shares = {SHARES} if self.rng.random() < 0.1 else set()
        aggregates = frozenset(name_to_uuid(each) for each in AGGREGATES if self.rng.random() < 0.3)
        return traits | shares, aggregates

    def use(self, provider: Provider) -> None:
        used = {name: self.rng.choice([0, 1, 2, 4, LARGEST]) for name in CLASSES if self.rng.random() < 0.5}
        self.put(provider.with_usage(used))

    def offer(self, provider: Provider) -> None:
        self.put(replace(provider, inventories=self.inventories()))

    def describe(self, provider: Provider) -> None:
        traits, aggregates = self.marks()
        name = f"cn{self.rng.randint(0, 99)}"
        self.put(replace(provider, name=name, traits=traits, aggregates=aggregates))

    def subtree(self, provider: Provider) -> list[Provider]:
        """The provider, and then all providers below it."""
        found = [provider]
        for each in found:
            found += [child for child in self.providers.values() if child.parent_id == each.id]
        return found

    def move(self, provider: Provider) -> None:
        """Move a provider with all below it to another parent, or to the top."""
        moving = self.subtree(provider)
        parent = self.rng.choice([None, *(each for each in self.providers.values() if each not in moving)])
        root = provider.id if parent is None else parent.root_id
        for each in moving:
            above = each.parent_id if each is not provider else None if parent is None else parent.id
            self.put(replace(each, root_id=root, parent_id=above))

    def remove(self, provider: Provider) -> None:
        for each in reversed(self.subtree(provider)):
            del self.providers[each.id]
            self.snapshot.remove(each.id)


def explain(snapshot: ModelSnapshot, request: CandidatesRequest, among: Container[int] | None = None) -> str:
    return json.dumps(explanation_document(explain_request(snapshot, request, SearchBudget(), among)))


@st.composite
def questions(draw: st.DrawFn) -> list[CandidatesRequest]:
    """Draw requests of which some ask for more than any provider has."""
    snapshot, found = build(*(Spec(str(number)) for number in range(1, 9))), []
    for _ in range(draw(st.integers(1, 4))):
        request = draw(requests(snapshot))
        named = frozenset[str]().union(*request.same_subtrees)
        assume(all(group.resources or group.suffix in named for group in request.groups))
        factor = draw(st.sampled_from([1, 1, 2, LARGEST // 3]))
        groups = tuple(
            replace(each, resources={name: amount * factor for name, amount in each.resources.items()})
            for each in request.groups
        )
        found.append(replace(request, groups=groups))
    return found


histories = settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@histories
@given(questions(), st.integers(0, 2**32))
def test_explanations_from_kept_tables_are_those_of_a_fresh_snapshot(
    asked: list[CandidatesRequest], seed: int
) -> None:
    rng = random.Random(seed)
    cloud = ChangingCloud(rng)
    for _ in range(rng.choice([2, 8, 20])):
        cloud.change()
    for _ in range(12):
        for _ in range(rng.choice([0, 1, 3])):
            cloud.change()
        request, fresh = rng.choice(asked), cloud.fresh_snapshot()
        among = {root for root in fresh.trees if rng.random() < 0.5} if rng.random() < 0.2 else None
        assert explain(cloud.snapshot, request, among) == explain(fresh, request, among)


class InterruptedBudget(SearchBudget):
    """A budget without limits that lets another thread run at some of its checks."""

    def __init__(self, interrupt: Callable[[], Any]) -> None:
        super().__init__()
        self._interrupt = interrupt

    def spend(self, steps: int = 1) -> None:
        self._interrupt()
        super().spend(steps)


@histories
@given(questions(), st.integers(0, 2**32))
def test_an_explanation_is_right_if_others_change_the_cloud_and_its_tables_meanwhile(
    asked: list[CandidatesRequest], seed: int
) -> None:
    rng = random.Random(seed)
    cloud = ChangingCloud(rng)
    for _ in range(rng.choice([4, 12])):
        cloud.change()

    def interrupt() -> None:
        if rng.random() < 0.02:
            if cloud.snapshot is pinned:
                cloud.snapshot = pinned.copy()
            cloud.change()
            request = rng.choice(asked)
            assert explain(cloud.snapshot, request) == explain(cloud.fresh_snapshot(), request)

    for request in asked * 2:
        pinned, fresh = cloud.snapshot, cloud.fresh_snapshot()
        pinned.pin_count += 1
        found = explain_request(pinned, request, InterruptedBudget(interrupt))
        assert json.dumps(explanation_document(found)) == explain(fresh, request)
        pinned.pin_count -= 1
