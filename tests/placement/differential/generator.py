"""Generates random requests about a few providers and consumers. Most requests are valid, and some are
not.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from tests.placement.differential.play import Names, Play
from tests.placement.differential.services import Request

STANDARD_CLASSES: Final = ("VCPU", "DISK_GB")
STANDARD_TRAITS: Final = ("COMPUTE_NODE", "MISC_SHARES_VIA_AGGREGATE")
TYPES: Final = ("INSTANCE", "MIGRATION")
ODD: Final = (None, True, -1, 0, 1.5, 2.0, "", "x", [], {}, 2**31, "0" * 300, 1e300)
MUTATED: Final = 0.12
STALE: Final = 0.1
UNKNOWN: Final = 0.05

Version = tuple[int, int]


class Generator:
    """Generates requests. It reads generations from the services as a client does."""

    def __init__(self, seed: int, names: Names, play: Play) -> None:
        self.random = random.Random(seed)
        self.names = names
        self.play = play
        self.version: Version = (1, 39)

    def request(self) -> Request:
        """Generate the next request."""
        if self.random.random() < 0.5:
            self.version = (1, self.random.randrange(40))
        else:
            self.version = (1, 39)
        (make,) = self.random.choices(*zip(*_OPERATIONS, strict=True))
        method, path, body = make(self)
        if body is not None and self.random.random() < MUTATED:
            body = self._mutated(body)
        return Request(method, path, body, f"1.{self.version[1]}")

    def setting(self) -> list[Request]:
        """Create the first objects, which later requests refer to."""
        providers, names = self.names.providers, self.names
        requests = []
        for each in providers[:4]:
            parent = self.random.choice([None, None, *providers[: providers.index(each)]])
            body = {"name": names.name(each), "uuid": each, "parent_provider_uuid": parent}
            requests.append(Request("POST", "/resource_providers", body))
        requests += [Request("PUT", f"/traits/{each}") for each in names.traits[:2]]
        requests.append(Request("PUT", f"/resource_classes/{names.classes[0]}"))
        for each in providers[:3]:
            inventories = {name: {"total": 8} for name in self._classes(0)}
            body = {"resource_provider_generation": 0, "inventories": inventories}
            requests.append(Request("PUT", f"/resource_providers/{each}/inventories", body))
        return requests

    # parts of requests

    def chance(self, likely: float) -> bool:
        return self.random.random() < likely

    def provider(self) -> str:
        return self.random.choice(self.names.providers)

    def consumer(self) -> str:
        return self.random.choice(self.names.consumers)

    def _some(self, known: Sequence[str], least: int = 0) -> list[str]:
        return self.random.sample(known, self.random.randint(least, len(known)))

    def _classes(self, least: int = 1) -> list[str]:
        known = [*STANDARD_CLASSES, self.names.classes[0]]
        if self.chance(UNKNOWN):
            known.append(self.names.classes[1])
        return self._some(known, least)

    def _traits(self, least: int = 0) -> list[str]:
        known = [*STANDARD_TRAITS, *self.names.traits[:2]]
        if self.chance(UNKNOWN):
            known.append(self.names.traits[2])
        chosen = self._some(known, least)
        return [*chosen, chosen[0]] if chosen and self.chance(0.1) else chosen

    def _generation(self, provider: str) -> int:
        known = self.play.generation(provider)
        return known if known < 0 or not self.chance(STALE) else known + self.random.choice([-1, 1])

    def _inventory(self) -> dict[str, Any]:
        chosen = self.random
        inventory: dict[str, Any] = {"total": chosen.randint(1, 16)}
        if self.chance(0.3):
            inventory["reserved"] = chosen.randint(0, inventory["total"] + 1)
        if self.chance(0.3):
            inventory["allocation_ratio"] = chosen.choice([0.5, 1.0, 1.5, 16, 0.1, -1.0, 0])
        if self.chance(0.2):
            inventory["min_unit"] = chosen.randint(1, 3)
        if self.chance(0.2):
            inventory["max_unit"] = chosen.randint(1, 8)
        if self.chance(0.2):
            inventory["step_size"] = chosen.randint(1, 3)
        return inventory

    def _inventories(self) -> dict[str, Any]:
        return {name: self._inventory() for name in self._classes(0)}

    def _resources(self) -> dict[str, int]:
        return {name: self.random.randint(1, 6) for name in self._classes()}

    def _owner(self) -> dict[str, Any]:
        owner: dict[str, Any] = {}
        if self.version >= (1, 8):
            owner |= {"project_id": self.random.choice(self.names.projects), "user_id": "user"}
        if self.version >= (1, 38):
            owner["consumer_type"] = self.random.choice(TYPES)
        return owner

    def _claim(self, consumer: str, *, may_be_empty: bool) -> dict[str, Any]:
        known = self.play.consumer_generation(consumer)
        # emptying a consumer that never existed is another deviation
        least = 0 if may_be_empty and known is not None else 1
        providers = self._some(self.names.providers[: 4 + self.chance(UNKNOWN)], least)[:2]
        if self.version < (1, 12):
            items = [self._item(each) for each in providers]
            if self.chance(0.1):
                items.append({**items[0], "resources": self._resources()})
            return {"allocations": items, **self._owner()}
        allocations = {each: {"resources": self._resources()} for each in providers}
        body = {"allocations": allocations, **self._owner()}
        if self.version >= (1, 28):
            body["consumer_generation"] = known
            if self.chance(STALE):
                body["consumer_generation"] = self.random.choice([None, 1, 2, 7])
        if self.version >= (1, 34) and self.chance(0.2):
            body["mappings"] = {"": [*providers, self.provider()]}
        return body

    def _item(self, provider: str) -> dict[str, Any]:
        return {"resource_provider": {"uuid": provider}, "resources": self._resources()}

    def _mutated(self, body: Any) -> Any:
        """Replace one value in a body by an invalid value."""
        places = list(_places(body))
        holder, key = self.random.choice(places) if places else (None, None)
        if holder is None:
            return self.random.choice(ODD) or []
        # a provider without a uuid gets a random one, which differs between the services
        what = self.random.choice(["value", "value", "missing" if key != "uuid" else "value", "additional"])
        if what == "missing":
            del holder[key]
        elif what == "additional" and isinstance(holder, dict):
            holder["foo"] = self.random.choice(ODD)
        else:
            holder[key] = self.random.choice(ODD)
        return body

    # operations

    def make_provider(self) -> tuple[str, str, Any]:
        uuid = self.provider()
        body: dict[str, Any] = {"name": self._name(uuid), "uuid": uuid}
        if self.version >= (1, 14) and self.chance(0.5):
            body["parent_provider_uuid"] = self.random.choice([None, self.provider()])
        return "POST", "/resource_providers", body

    def _name(self, provider: str) -> str:
        return self.names.name(self.random.choice([provider, provider, self.provider()]))

    def change_provider(self) -> tuple[str, str, Any]:
        uuid = self.provider()
        body: dict[str, Any] = {"name": self._name(uuid)}
        if self.version >= (1, 14) and self.chance(0.6):
            body["parent_provider_uuid"] = self.random.choice([None, self.provider(), self.provider()])
        return "PUT", f"/resource_providers/{uuid}", body

    def delete_provider(self) -> tuple[str, str, Any]:
        return "DELETE", f"/resource_providers/{self.provider()}", None

    def look_at_provider(self) -> tuple[str, str, Any]:
        part = self.random.choice(["", "/inventories", "/usages", "/traits", "/aggregates", "/allocations"])
        if part == "/inventories" and self.chance(0.5):
            part += f"/{self.random.choice(self._classes())}"
        return "GET", f"/resource_providers/{self.provider()}{part}", None

    def replace_inventories(self) -> tuple[str, str, Any]:
        uuid = self.provider()
        body = {"resource_provider_generation": self._generation(uuid), "inventories": self._inventories()}
        return "PUT", f"/resource_providers/{uuid}/inventories", body

    def add_inventory(self) -> tuple[str, str, Any]:
        body = {"resource_class": self._classes()[0], **self._inventory()}
        return "POST", f"/resource_providers/{self.provider()}/inventories", body

    def change_inventory(self) -> tuple[str, str, Any]:
        uuid = self.provider()
        body = {"resource_provider_generation": self._generation(uuid), **self._inventory()}
        return "PUT", f"/resource_providers/{uuid}/inventories/{self._classes()[0]}", body

    def delete_inventory(self) -> tuple[str, str, Any]:
        which = self.random.choice(["", f"/{self._classes()[0]}", f"/{self._classes()[0]}"])
        return "DELETE", f"/resource_providers/{self.provider()}/inventories{which}", None

    def replace_traits(self) -> tuple[str, str, Any]:
        uuid = self.provider()
        body = {"resource_provider_generation": self._generation(uuid), "traits": self._traits()}
        return "PUT", f"/resource_providers/{uuid}/traits", body

    def delete_traits(self) -> tuple[str, str, Any]:
        return "DELETE", f"/resource_providers/{self.provider()}/traits", None

    def replace_aggregates(self) -> tuple[str, str, Any]:
        uuid = self.provider()
        aggregates = self._some(self.names.aggregates)
        if self.version < (1, 19):
            return "PUT", f"/resource_providers/{uuid}/aggregates", aggregates
        body = {"resource_provider_generation": self._generation(uuid), "aggregates": aggregates}
        return "PUT", f"/resource_providers/{uuid}/aggregates", body

    def names_of_traits(self) -> tuple[str, str, Any]:
        method = self.random.choice(["GET", "GET", "PUT", "PUT", "DELETE"])
        return method, f"/traits/{self.random.choice([*self.names.traits, 'COMPUTE_NODE', 'NONE'])}", None

    def names_of_classes(self) -> tuple[str, str, Any]:
        name = self.random.choice([*self.names.classes, "VCPU", "NONE"])
        method = self.random.choice(["GET", "PUT", "DELETE", "POST"])
        if method == "POST":
            return method, "/resource_classes", {"name": name}
        renames = method == "PUT" and self.version < (1, 7)
        body = {"name": self.random.choice(self.names.classes)} if renames else None
        return method, f"/resource_classes/{name}", body

    def claim(self) -> tuple[str, str, Any]:
        consumer = self.consumer()
        body = self._claim(consumer, may_be_empty=self.version >= (1, 28) and self.chance(0.2))
        return "PUT", f"/allocations/{consumer}", body

    def _claims(self) -> dict[str, Any]:
        consumers = self._some(self.names.consumers, 1)[:3]
        return {each: self._claim(each, may_be_empty=self.chance(0.2)) for each in consumers}

    def claim_several(self) -> tuple[str, str, Any]:
        self.version = max(self.version, (1, 12 + self.chance(0.9)))
        return "POST", "/allocations", self._claims()

    def release(self) -> tuple[str, str, Any]:
        return "DELETE", f"/allocations/{self.consumer()}", None

    def look_at_consumer(self) -> tuple[str, str, Any]:
        return "GET", f"/allocations/{self.consumer()}", None

    def reshape(self) -> tuple[str, str, Any]:
        self.version = max(self.version, (1, 29 + self.chance(0.9)))
        providers = self._some(self.names.providers[:4])[:2]
        inventories = {
            each: {"resource_provider_generation": self._generation(each), "inventories": self._inventories()}
            for each in providers
        }
        claims = self._claims() if self.chance(0.6) else {}
        return "POST", "/reshaper", {"inventories": inventories, "allocations": claims}

    def project_usages(self) -> tuple[str, str, Any]:
        query = [("project_id", self.random.choice(self.names.projects))]
        if self.chance(0.4):
            query.append(("user_id", self.random.choice(["user", "nobody"])))
        if self.chance(0.3):
            query.append(("consumer_type", self.random.choice([*TYPES, "all", "unknown", "x"])))
        return "GET", f"/usages?{_encoded(query)}", None

    def list_providers(self) -> tuple[str, str, Any]:
        query = []
        if self.chance(0.8):  # the world has no other objects, but clients do this
            query.append(("in_tree", self.provider()))
        for make, likely in (
            (lambda: ("name", self.names.name(self.provider())), 0.2),
            (lambda: ("uuid", self.provider()), 0.1),
            (lambda: ("member_of", self._aggregates_asked()), 0.3),
            (lambda: ("resources", self._resources_asked()), 0.3),
            (lambda: ("required", self._traits_asked()), 0.3),
        ):
            if self.chance(likely):
                query.append(make())
        return "GET", f"/resource_providers?{_encoded(query)}", None

    def candidates(self) -> tuple[str, str, Any]:
        self.version = max(self.version, (1, 9 + self.chance(0.95)))
        query: list[tuple[str, str]] = []
        suffixes = ["", *self.random.choice([[], [], ["1"], ["1", "2"], ["_A"], ["_A", "_B"], ["_", "_A"]])]
        # the last class has no inventory
        bare = len(suffixes) > 2 and self.version >= (1, 36) and self.chance(0.2)
        for suffix in suffixes[self.chance(0.3) and len(suffixes) > 1 :]:
            is_bare = bare and suffix == suffixes[-1]
            if not is_bare:
                query.append((f"resources{suffix}", self._resources_asked()))
            if is_bare or self.chance(0.3):
                query.append((f"required{suffix}", self._traits_asked()))
            if self.chance(0.2):
                query.append((f"member_of{suffix}", self._aggregates_asked()))
            if not is_bare and self.chance(0.1):
                query.append((f"in_tree{suffix}", self.provider()))
        if len(suffixes) > 1 and self.chance(0.9):
            query.append(("group_policy", self.random.choice(["none", "isolate", "isolate"])))
        if len(suffixes) == 1 and self.chance(0.2):
            query.append(("limit", str(self.random.randint(0, 5))))
        if self.chance(0.1):
            query.append(("root_required", self._traits_asked()))
        if len(suffixes) > 2 and (bare or self.chance(0.3)):
            query.append(("same_subtree", ",".join(suffixes[1:])))
        return "GET", f"/allocation_candidates?{_encoded(query)}", None

    def list_traits(self) -> tuple[str, str, Any]:
        names = self.names.traits
        values = [f"in:{','.join(names)}", f"startswith:{names[0][:-1]}", "in:COMPUTE_NODE", "", "x"]
        query = [("name", self.random.choice(values))]
        if self.chance(0.5):
            query.append(("associated", self.random.choice(["true", "false", "True", "x"])))
        return "GET", f"/traits?{_encoded(query)}", None

    def wrong_method(self) -> tuple[str, str, Any]:
        usages = f"/resource_providers/{self.provider()}/usages"
        path = self.random.choice(["/resource_providers", usages, "/allocations", "/usages", "/"])
        return self.random.choice(["PATCH", "DELETE", "PUT", "POST"]), path, None

    def _resources_asked(self) -> str:
        return ",".join(f"{name}:{amount}" for name, amount in self._resources().items())

    def _traits_asked(self) -> str:
        chosen = self._traits(1)[:2]
        if self.chance(0.15):
            return f"in:{','.join(chosen)}"
        return ",".join("!" * self.chance(0.3) + name for name in chosen)

    def _aggregates_asked(self) -> str:
        chosen = self._some(self.names.aggregates, 1)[:2]
        text = chosen[0] if len(chosen) == 1 and self.chance(0.5) else f"in:{','.join(chosen)}"
        return "!" * self.chance(0.2) + text


def _encoded(query: Sequence[tuple[str, str]]) -> str:
    return "&".join(f"{quote(name)}={quote(value, safe=':,!')}" for name, value in query)


def _places(document: Any) -> Any:
    """Find all replaceable values of a document; yield container and key."""
    if isinstance(document, dict | list):
        keys = list(document) if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield document, key
            yield from _places(document[key])


_Operation = Callable[[Generator], tuple[str, str, Any]]
_OPERATIONS: Final[list[tuple[_Operation, int]]] = [
    (Generator.make_provider, 6),
    (Generator.change_provider, 8),
    (Generator.delete_provider, 3),
    (Generator.look_at_provider, 6),
    (Generator.replace_inventories, 8),
    (Generator.add_inventory, 4),
    (Generator.change_inventory, 4),
    (Generator.delete_inventory, 3),
    (Generator.replace_traits, 7),
    (Generator.delete_traits, 1),
    (Generator.replace_aggregates, 6),
    (Generator.names_of_traits, 4),
    (Generator.names_of_classes, 4),
    (Generator.claim, 12),
    (Generator.claim_several, 8),
    (Generator.release, 2),
    (Generator.look_at_consumer, 3),
    (Generator.reshape, 6),
    (Generator.project_usages, 3),
    (Generator.list_providers, 7),
    (Generator.candidates, 10),
    (Generator.list_traits, 2),
    (Generator.wrong_method, 1),
]
