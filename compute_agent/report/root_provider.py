"""The root provider of a host, its owner (nova-compute or the agent), and its status for new guests.

nova-compute makes a provider with the name of its hypervisor, and replaces all of its inventories once a
minute. Traits that only nova-compute sets (``COMPUTE_...``) show that a root is Nova's. The agent then writes
nothing to it, and has its inventories in providers below.

Nova's scheduler forbids COMPUTE_STATUS_DISABLED for each flavor. nova-compute sets the trait for a disabled
service. The agent sets it while at least one of its own causes holds, and marks each cause with another
trait. So several causes share one switch, a lost state file can be restored, and a switch without a mark
belongs to another program and stays.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import os_traits

from compute_agent.inventory.derive import BESIDE
from compute_agent.model.messages import full_name
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient, ProviderRecord

_ALSO_OURS = frozenset({os_traits.COMPUTE_NODE, os_traits.COMPUTE_STATUS_DISABLED})
"""Traits with the prefix of nova-compute that the agent sets, too, so that they are not evidence of it."""


@dataclass(frozen=True, slots=True)
class NovaRoot:
    """The root provider that nova-compute made for this host."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class RootSearch:
    """The terms of a search for nova-compute's root.

    :ivar name: the name of the hypervisor.
    :ivar own: the uuid of the agent's own root.
    :ivar beside: whether the ini file declares a nova-compute; None lets the search decide.
    :ivar last: the root that was found last.
    """

    name: str
    own: str
    beside: bool | None = None
    last: NovaRoot | None = None


@dataclass(frozen=True, slots=True)
class RootOwner:
    """The owner of the root provider.

    :ivar beside: whether nova-compute is the owner.
    :ivar novas: nova-compute's root; None without one so far.
    :ivar known: whether the owner is certain. Until then, allocations of this host cannot be recognised.
    """

    beside: bool = False
    novas: NovaRoot | None = None
    known: bool = True


def root_keeper(beside: bool) -> str:
    """The owner of a root provider in words: nova-compute, if the agent is ``beside``, or the agent."""
    return "nova-compute's" if beside else "the agent's"


def owner_of(shape: str | None, last: NovaRoot | None = None, decided: bool = True) -> RootOwner:
    """The owner of the root by [compute] provider_tree of the ini file, and by the last search.

    :param shape: the option of the shape; None if not set.
    :param last: nova-compute's root, as found last.
    :param decided: whether a search has finished.
    """
    if shape == BESIDE or (shape is None and last is not None):
        return RootOwner(True, last, last is not None)
    return RootOwner(known=decided or shape is not None)


class RootMissingError(PlacementError):
    """nova-compute owns the root, and has not created it or has deleted it, so no report is possible."""

    def __init__(self, detail: str) -> None:
        super().__init__("GET", "/resource_providers", detail)
        self.args = (detail,)


class FormerRootError(RootMissingError):
    """The agent's own former root has the name that nova-compute needs."""


def is_novas(traits: frozenset[str]) -> bool:
    """Whether nova-compute keeps the provider that has these traits."""
    return any(trait.startswith("COMPUTE_") for trait in traits - _ALSO_OURS)


def find_root(client: PlacementClient, search: RootSearch) -> NovaRoot | None:
    """Nova's root; None if the root is the agent's own.

    The name decides. A renamed root is found by its uuid.

    :raises RootMissingError: nova-compute's root does not exist yet.
    :raises PlacementError:
    """
    if search.beside is False:
        return None
    last, record = search.last, client.provider_record(search.name)
    if record is None and last is not None:
        # A provider that is gone gives an empty answer here, and no error.
        record = next((one for one in client.providers_in_tree(last.uuid) if one.uuid == last.uuid), None)
    if search.beside is None and last is None:
        return _discover_root(client, record)
    if record is None:
        hint = "" if search.beside else "; if it is gone for good, set [compute] provider_tree"
        raise RootMissingError(
            f"waiting for nova-compute to make the provider {search.name}: its name is [compute]"
            f" resource_provider_name, else that of the hypervisor{hint}"
        )
    if record.parent_uuid is not None:
        raise RootMissingError(
            f"the provider {full_name(record.name, record.uuid)} is below another one, so it is not a root of"
            " nova-compute's: [compute] resource_provider_name has to be the hypervisor's name in Nova"
        )
    if record.uuid == search.own and not is_novas(client.get_traits(record.uuid)[0]):
        raise FormerRootError(
            f"waiting for nova-compute to make the provider {search.name}, which the agent itself made before"
        )
    return NovaRoot(record.uuid, record.name)


def _discover_root(client: PlacementClient, record: ProviderRecord | None) -> NovaRoot | None:
    if record is None or record.parent_uuid is not None or not is_novas(client.get_traits(record.uuid)[0]):
        return None
    return NovaRoot(record.uuid, record.name)


DISABLED: Final = "COMPUTE_STATUS_DISABLED"


class DisableCause(enum.StrEnum):
    """Causes of the agent to keep new guests away. The values are the traits that mark them."""

    WATERMARK = "CUSTOM_WATERMARK_REACHED"
    MAINTENANCE = "CUSTOM_HOST_DISABLED"


MARKS: Final = frozenset(cause.value for cause in DisableCause)

Causes = Mapping[DisableCause, bool]
"""Whether each cause keeps new guests away. An absent cause is unknown, and its mark stays."""


RELEASE_REASON: Final = "compute-agent release"
"""The reason with which a release keeps new guests away."""


@dataclass(frozen=True, slots=True)
class HostMaintenance:
    """The last order of an operator, or of a release: whether the host is ``off``, with reason and time.

    ``since`` is the time of the order, in seconds since the epoch.
    """

    off: bool
    reason: str = ""
    since: float = 0.0

    @property
    def is_of_release(self) -> bool:
        """Whether a release keeps new guests away, where no operator did."""
        return self.off and self.reason == RELEASE_REASON


def switched_traits(traits: frozenset[str], causes: Causes) -> frozenset[str]:
    """The traits of the root provider that keep new guests away while a cause holds."""
    if DISABLED in traits and not traits & MARKS:
        return traits
    asking = frozenset(cause.value for cause in DisableCause if causes.get(cause, cause.value in traits))
    return (traits - MARKS - {DISABLED}) | (asking | {DISABLED} if asking else asking)


def in_words(traits: frozenset[str]) -> str:
    """A sentence on new guests by these traits of the root provider, with the program that set them."""
    if DISABLED not in traits:
        return "let in"
    causes = [cause.name.lower() for cause in DisableCause if cause.value in traits]
    return f"kept away by {' and '.join(causes)}" if causes else f"kept away by {DISABLED} of another program"
