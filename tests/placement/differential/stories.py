"""Functions for the first steps of differential tests, and for the bodies of their requests."""

from typing import Any

from tests.placement.builders import claim_body, inventories_body
from tests.placement.differential.play import Names, Play

Amounts = dict[str, dict[str, int]]


def make(play: Play, names: Names, *parents: int | None, **totals: int) -> list[str]:
    """Create a root provider, and a provider below each of ``parents`` (given by number), with these
    inventories.
    """
    made = names.providers[: 1 + len(parents)]
    for uuid, parent in zip(made, (None, *parents), strict=True):
        body = {"name": names.name(uuid), "uuid": uuid}
        if parent is not None:
            body["parent_provider_uuid"] = made[parent]
        assert play("POST", "/resource_providers", body).status == 200
        if totals:
            describe(play, uuid, **totals)
    return made


def present_inventories(play: Play, uuid: str, **totals: int | dict[str, Any]) -> dict[str, Any]:
    """Return the body with a provider's new inventories (totals or whole inventories), and its current
    generation.
    """
    return inventories_body(play.generation(uuid), **totals)


def describe(play: Play, uuid: str, **totals: int | dict[str, Any]) -> None:
    """Replace the inventories of a provider."""
    body = present_inventories(play, uuid, **totals)
    assert play("PUT", f"/resource_providers/{uuid}/inventories", body).status == 200


def put(play: Play, consumer: str, amounts: Amounts, generation: int | None = None) -> int:
    """Send a claim and return the status of the answer."""
    return play("PUT", f"/allocations/{consumer}", claim_body(amounts, generation)).status


def listed(uuid: str, **resources: int) -> dict[str, Any]:
    """Return a claim of one provider in the format before 1.12."""
    return {"allocations": [{"resource_provider": {"uuid": uuid}, "resources": resources}]}


def set_traits(play: Play, uuid: str, *traits: str) -> None:
    """Replace the traits of a provider."""
    body = {"resource_provider_generation": play.generation(uuid), "traits": list(traits)}
    assert play("PUT", f"/resource_providers/{uuid}/traits", body).status == 200


def set_aggregates(play: Play, uuid: str, *aggregates: str) -> None:
    """Replace the aggregates of a provider."""
    body = {"resource_provider_generation": play.generation(uuid), "aggregates": list(aggregates)}
    assert play("PUT", f"/resource_providers/{uuid}/aggregates", body).status == 200


def look(play: Play, providers: list[str], consumers: list[str]) -> None:
    """Compare all data that both services have about these objects."""
    for uuid in providers:
        for part in ("", "/inventories", "/usages", "/traits", "/aggregates", "/allocations"):
            play("GET", f"/resource_providers/{uuid}{part}")
    for uuid in consumers:
        play("GET", f"/allocations/{uuid}")
