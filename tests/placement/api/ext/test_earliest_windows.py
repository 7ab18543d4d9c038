"""The n earliest windows over REST, for groups, devices, flavors and several claims: each hour is tried.

The judge shares no code with the service: it tries all providers for all groups, at each whole hour.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.examples import examples
from tests.placement.builders import make_provider, provider_path
from tests.placement.moving_clock import iso
from tests.placement.running import Admin

HOUR = 3600
LAST = 12
ANY_HOST = "any host"
"""The key of the windows of several claims, which may have other hosts in each window."""

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


@pytest.fixture
def cloud(admin: Admin) -> SmallCloud:
    return make_cloud(admin, TREES)


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


def book_randomly(admin: Admin, cloud: SmallCloud, rng: random.Random, base: float) -> list[str]:
    """Book windows at random hours; return their uuids."""
    made = []
    cloud.booked = {hour: Amounts() for hour in range(LAST)}
    for _ in range(14):
        begin = rng.randrange(LAST - 1)
        end = rng.randrange(begin + 1, min(LAST, begin + 6))
        body = {"starts_at": iso(base + begin * HOUR), "expires_at": iso(base + end * HOUR)}
        body |= {"project_id": "project", "user_id": "user", **rng.choice(QUESTIONS).fields}
        answer = admin("POST", "/ext/v1/reservations", json=body | {"movable": False})
        assert answer.status_code in (201, 409), answer.text
        if answer.status_code == 201:
            made.append(answer.json["reservation"]["uuid"])
            for hour in range(begin, end):
                cloud.booked[hour] += amounts_of(answer.json["reservation"])
    return made


@pytest.mark.parametrize("is_joint", [False, True])
def test_the_windows_are_the_earliest_of_all_hours(admin: Admin, cloud: SmallCloud, is_joint: bool) -> None:
    for _ in range(examples(15)):
        seed = random.randrange(1 << 32)
        rng, base = random.Random(seed), float(int(time.time()) + HOUR)
        made = book_randomly(admin, cloud, rng, base)
        for _ in range(6):
            check_question(admin, cloud, rng, base, f"seed {seed}", is_joint=is_joint)
        for each in made:
            assert admin("DELETE", f"/ext/v1/reservations/{each}").status_code == 204


def check_question(
    admin: Admin, cloud: SmallCloud, rng: random.Random, base: float, seed: str, *, is_joint: bool
) -> None:
    duration, first, last = rng.randint(1, 5), rng.randrange(4), rng.randrange(4, LAST + 3)
    questions = [rng.choice(QUESTIONS) for _ in range(rng.randint(1, 3) if is_joint else 1)]
    apart = is_joint and rng.random() < 0.4
    fields = (
        {"claims": [each.fields for each in questions], "different_hosts": apart}
        if is_joint
        else questions[0].fields
    )
    times = {"not_before": iso(base + first * HOUR), "deadline": iso(base + (last + duration) * HOUR)}
    body = {"duration": duration * HOUR, **times, **fields}

    def find(limit: int) -> list[dict[str, Any]]:
        answer = admin("POST", "/ext/v1/availability", json=body | {"limit": limit})
        assert answer.status_code == 200, answer.text
        assert answer.json["is_complete"]
        found: list[dict[str, Any]] = answer.json["windows"]
        return found

    def hour_of(text: str) -> int:
        hours = (datetime.fromisoformat(text).timestamp() - base) / HOUR
        assert hours == int(hours), seed
        return int(hours)

    def earliest(hosts: Sequence[str], after: int) -> int | None:
        starts = range(after, last + 1)
        fitting = (t for t in starts if cloud.fits(questions, hosts, range(t, t + duration), apart=apart))
        return next(fitting, None)

    found = find(100)
    starts = [hour_of(each["starts_at"]) for each in found]
    assert starts == sorted(starts), seed
    # a single request gets the windows of each host; several claims get one window after the other
    keys = [ANY_HOST] if len(questions) > 1 else [*cloud.hosts]
    ahead: dict[str, int | None] = dict.fromkeys(keys, first)
    for start, window in zip(starts, found, strict=True):
        places = window["claims"] if is_joint else [window]
        roots = [each["root_provider_uuid"] for each in places]
        assert len(set(roots)) == len(roots) or not apart, seed
        for question, place in zip(questions, places, strict=True):
            choices = cloud.possible_amounts(question, place["root_provider_uuid"])
            assert any(amounts_of(place) == each for each in choices), seed
        taken = sum((amounts_of(each) for each in places), Amounts())
        until = None if window["free_until"] is None else hour_of(window["free_until"])
        assert until is None or until >= start + duration, seed
        assert cloud.has_room(taken, range(start, until or 2 * LAST)), seed
        assert until is None or not cloud.has_room(taken, [until]), seed
        key = ANY_HOST if len(questions) > 1 else roots[0]
        after, hosts = ahead[key], [*cloud.hosts] if key == ANY_HOST else [key]
        assert after is not None, seed
        assert start == earliest(hosts, after), seed
        ahead[key] = until
    for key, after in ahead.items():
        if after is not None:
            assert earliest([*cloud.hosts] if key == ANY_HOST else [key], after) is None, seed
    for limit in (1, 2, 3):
        assert find(limit) == found[:limit], seed
