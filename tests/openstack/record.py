"""Content of a Placement service with names instead of uuids: equal in clouds with the same history."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.openstack.client import CloudClient


@dataclass(frozen=True)
class Record:
    """The content at one moment."""

    providers: dict[str, Any] = field(default_factory=dict)
    """Providers by name: parent, inventories, traits, aggregates, usages."""
    allocations: dict[str, Any] = field(default_factory=dict)
    """Consumers: type, project and user, and amounts by provider and class."""
    custom: tuple[str, ...] = ()
    """Custom resource classes and traits."""

    def changes(self, before: "Record") -> str:
        """Format changed allocations as one line."""
        changed = [
            f"{consumer}: {_text(self.allocations.get(consumer))}"
            for consumer in sorted({*self.allocations, *before.allocations})
            if self.allocations.get(consumer) != before.allocations.get(consumer)
        ]
        return "; ".join(changed) or "-"


def _text(claim: Mapping[str, Any] | None) -> str:
    if claim is None:
        return "nothing"
    return ", ".join(
        f"{host} " + " ".join(f"{name}={amount}" for name, amount in sorted(amounts.items()))
        for host, amounts in sorted(claim["allocations"].items())
    )


def record(placement: CloudClient, names: Mapping[str, str]) -> Record:
    """Read the current content.

    :param names: of servers, hosts and aggregates, by uuid.
    """
    listed = placement.get("/resource_providers")["resource_providers"]
    known = {each["uuid"]: names.get(each["uuid"], each["name"]) for each in listed}
    providers, consumers = {}, set()
    for each in listed:
        path = f"/resource_providers/{each['uuid']}"
        consumers |= set(placement.get(f"{path}/allocations")["allocations"])
        providers[known[each["uuid"]]] = {
            "parent": known.get(each["parent_provider_uuid"]),
            "root": known[each["root_provider_uuid"]],
            "inventories": placement.get(f"{path}/inventories")["inventories"],
            "traits": sorted(placement.get(f"{path}/traits")["traits"]),
            "aggregates": sorted(
                names.get(uuid, uuid) for uuid in placement.get(f"{path}/aggregates")["aggregates"]
            ),
            "usages": placement.get(f"{path}/usages")["usages"],
        }
    claims = [(uuid, placement.get(f"/allocations/{uuid}")) for uuid in consumers]
    return Record(
        dict(sorted(providers.items())),
        dict(sorted((names.get(uuid, uuid), _claim(claim, known)) for uuid, claim in claims if claim)),
        _custom(placement),
    )


def _claim(claim: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    about = {name: claim.get(name) for name in ("consumer_type", "project_id", "user_id")}
    amounts = {known[uuid]: each["resources"] for uuid, each in claim["allocations"].items()}
    return {**about, "allocations": amounts}


def _custom(placement: CloudClient) -> tuple[str, ...]:
    classes = [each["name"] for each in placement.get("/resource_classes")["resource_classes"]]
    traits = placement.get("/traits?name=startswith:CUSTOM_")["traits"]
    return tuple(sorted([*traits, *(name for name in classes if name.startswith("CUSTOM_"))]))
