"""A small cloud with requests for it, for tests that compare the service with brute force."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.placement.builders import make_provider, provider_path
from tests.placement.running import Admin

HOUR = 3600
LAST = 12

Amounts = Counter[tuple[str, str]]
"""Amounts by provider and resource class."""


@dataclass(frozen=True)
class Group:
    """Resources that come from one provider with a trait, or each from any provider of the host."""

    resources: Mapping[str, int]
    trait: str | None = None
    is_one_provider: bool = True


@dataclass(frozen=True)
class Question:
    """A query or a flavor, and its meaning."""

    fields: Mapping[str, Any]
    groups: Sequence[Group]
    are_isolated: bool = False


def unnumbered(**resources: int) -> Group:
    return Group(resources, is_one_provider=False)


GPU = {"CUSTOM_GPU": 1}
CELL = {"PCPU": 2, "MEMORY_MB": 1024}
QUESTIONS = [
    Question({"query": "resources=VCPU:2"}, [unnumbered(VCPU=2)]),
    Question({"query": "resources=VCPU:1,CUSTOM_GPU:1"}, [unnumbered(VCPU=1, CUSTOM_GPU=1)]),
    Question(
        {"query": "resources=VCPU:1&resources_A=CUSTOM_GPU:1&resources_B=CUSTOM_GPU:1&group_policy=isolate"},
        [unnumbered(VCPU=1), Group(GPU), Group(GPU)],
        are_isolated=True,
    ),
    Question(
        {"query": "resources=VCPU:2&resources_A=CUSTOM_GPU:1&required_A=CUSTOM_FAST"},
        [unnumbered(VCPU=2), Group(GPU, "CUSTOM_FAST")],
    ),
    Question(
        {"query": "resources_A=PCPU:2,MEMORY_MB:1024&resources_B=PCPU:2,MEMORY_MB:1024&group_policy=none"},
        [Group(CELL), Group(CELL)],
    ),
    Question({"flavor": {"vcpus": 2, "ram": 1024, "disk": 0}}, [unnumbered(VCPU=2, MEMORY_MB=1024)]),
    Question(
        {
            "flavor": {
                "vcpus": 1,
                "ram": 1024,
                "disk": 0,
                "extra_specs": {"resources1:CUSTOM_GPU": "1", "trait1:CUSTOM_FAST": "required"},
            }
        },
        [unnumbered(VCPU=1, MEMORY_MB=1024), Group(GPU, "CUSTOM_FAST")],
    ),
]
Tree = Sequence[tuple[Mapping[str, int], Sequence[str]]]
"""The providers of a host, the root first, with inventories and traits."""
TREES: Sequence[Tree] = [
    [
        ({"VCPU": 4, "MEMORY_MB": 3072}, []),
        ({"CUSTOM_GPU": 1}, ["CUSTOM_FAST"]),
        ({"CUSTOM_GPU": 2}, []),
    ],
    [({"VCPU": 6}, []), ({"PCPU": 4, "MEMORY_MB": 2048}, []), ({"PCPU": 3, "MEMORY_MB": 4096}, [])],
    [({"VCPU": 3, "MEMORY_MB": 4096}, []), ({"CUSTOM_GPU": 1}, ["CUSTOM_FAST"])],
]


@dataclass
class SmallCloud:
    """The hosts by root, with inventories and traits by provider, and the booked amounts by hour."""

    hosts: dict[str, list[str]]
    capacities: Amounts
    traits: dict[str, Sequence[str]]
    booked: dict[int, Amounts]

    def possible_amounts(self, question: Question, host: str) -> Iterator[Amounts]:
        """Yield the amounts of each choice of providers of a host."""
        members = self.hosts[host]
        parts: list[tuple[Group, str | None]] = []
        for group in question.groups:
            names = [None] if group.is_one_provider else [*group.resources]
            parts += [(group, name) for name in names]
        for chosen in itertools.product(members, repeat=len(parts)):
            single = [uuid for (group, _), uuid in zip(parts, chosen, strict=True) if group.is_one_provider]
            if question.are_isolated and len(set(single)) < len(single):
                continue
            found = Amounts()
            for (group, name), uuid in zip(parts, chosen, strict=True):
                if group.trait is not None and group.trait not in self.traits[uuid]:
                    break
                for resource, amount in group.resources.items():
                    if name in (None, resource):
                        found[uuid, resource] += amount
            else:
                yield found

    def has_room(self, amounts: Amounts, hours: Iterable[int]) -> bool:
        return all(
            self.booked.get(hour, {}).get(key, 0) + amount <= self.capacities[key]
            for hour in hours
            for key, amount in amounts.items()
        )

    def fits(self, questions: Sequence[Question], hosts: Sequence[str], hours: range, *, apart: bool) -> bool:
        """Return whether all questions fit together during some hours, by trying everything."""

        def place(number: int, taken: Amounts, free: Sequence[str]) -> bool:
            if number == len(questions):
                return True
            for host in free:
                rest = [each for each in free if each != host] if apart else free
                for amounts in self.possible_amounts(questions[number], host):
                    if self.has_room(taken + amounts, hours) and place(number + 1, taken + amounts, rest):
                        return True
            return False

        return place(0, Amounts(), hosts)


def make_cloud(admin: Admin, trees: Sequence[Tree]) -> SmallCloud:
    for path in ("/resource_classes/CUSTOM_GPU", "/traits/CUSTOM_FAST"):
        admin("PUT", path)
    found = SmallCloud({}, Amounts(), {}, {})
    for number, tree in enumerate(trees):
        root = None
        for position, (inventories, traits) in enumerate(tree):
            uuid = make_provider(admin, f"h{number}-{position}", parent=root, **inventories)
            root = root or uuid
            body = {"resource_provider_generation": 1, "traits": traits}
            assert admin("PUT", provider_path(uuid, "traits"), json=body).status_code == 200
            found.hosts.setdefault(root, []).append(uuid)
            found.traits[uuid] = traits
            found.capacities.update({(uuid, name): total for name, total in inventories.items()})
    return found


def amounts_of(document: Mapping[str, Any]) -> Amounts:
    return Amounts(
        {
            (uuid, name): amount
            for uuid, each in document["allocations"].items()
            for name, amount in each["resources"].items()
        }
    )
