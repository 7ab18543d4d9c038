"""The zone that a provider is in: a NUMA node, with all that is below it."""

from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot
from placement.model.trees import ZONE


def zone_of(snapshot: ModelSnapshot, provider: Provider) -> int | None:
    """The id of the nearest provider, upwards from this one, that is a NUMA node."""
    return next((each.id for each in snapshot.upwards(provider) if ZONE in each.traits), None)
