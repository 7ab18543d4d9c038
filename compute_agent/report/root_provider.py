"""The root provider of a host: finds its owner, nova-compute or the agent, and keeps new guests away.

nova-compute creates a provider with the name of its hypervisor, and replaces all of its inventories once a
minute. Traits that only nova-compute sets (``COMPUTE_...``) show that a root is Nova's. The agent then writes
nothing to the root, and puts its inventories into child providers; this is called *beside nova-compute*.

Nova's scheduler forbids COMPUTE_STATUS_DISABLED for each flavor. nova-compute sets the trait for a disabled
service. The agent sets the trait while at least one of its own causes holds, and marks each cause with a
separate trait. So several causes can share the trait, and the agent knows the causes even after the loss of
its state file. COMPUTE_STATUS_DISABLED without such a mark belongs to another program and stays.
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
"""Traits with the prefix ``COMPUTE_`` that the agent sets, too. They do not prove that nova-compute writes
the provider.
"""


@dataclass(frozen=True, slots=True)
class NovaRoot:
    """The root provider that nova-compute created for this host."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class RootSearch:
    """The parameters of a search for nova-compute's root provider.

    :ivar name: the name of the hypervisor.
    :ivar own: the uuid of the agent's own root.
    :ivar beside: whether nova-compute owns the root according to the ini file; None means that the search
        decides.
    :ivar last: the root that the last search found; None if no search has found a root.
    """

    name: str
    own: str
    beside: bool | None = None
    last: NovaRoot | None = None


@dataclass(frozen=True, slots=True)
class RootOwner:
    """The owner of the root provider.

    :ivar beside: whether nova-compute is the owner.
    :ivar novas: nova-compute's root provider; None if it has not been found yet.
    :ivar known: whether the owner is certain. If not, the agent cannot recognise allocations of this host.
    """

    beside: bool = False
    novas: NovaRoot | None = None
    known: bool = True


def root_keeper(beside: bool) -> str:
    """The name of a root provider's owner: nova-compute if ``beside``, otherwise the agent."""
    return "nova-compute's" if beside else "the agent's"


def owner_of(shape: str | None, last: NovaRoot | None = None, decided: bool = True) -> RootOwner:
    """The owner of the root, from ``[compute] provider_tree`` and the last search.

    :param shape: the value of the option; None if not set.
    :param last: nova-compute's root, as found last; None if no root was found.
    :param decided: whether a search has finished.
    """
    if shape == BESIDE or (shape is None and last is not None):
        return RootOwner(True, last, last is not None)
    return RootOwner(known=decided or shape is not None)


class RootMissingError(PlacementError):
    """nova-compute owns the root provider, which does not exist yet, so that nothing can be reported."""

    def __init__(self, detail: str) -> None:
        super().__init__("GET", "/resource_providers", detail)
        self.args = (detail,)


class FormerRootError(RootMissingError):
    """The agent's own former root still has the name that nova-compute needs for its root."""


def is_novas(traits: frozenset[str]) -> bool:
    """Whether a provider with these traits is managed by nova-compute."""
    return any(trait.startswith("COMPUTE_") for trait in traits - _ALSO_OURS)


def find_root(client: PlacementClient, search: RootSearch) -> NovaRoot | None:
    """nova-compute's root provider; None if the root is the agent's own.

    The root provider is found by its name, or by its uuid if it was renamed.

    :raises RootMissingError: nova-compute's root does not exist yet.
    :raises PlacementError: a request failed.
    """
    if search.beside is False:
        return None
    last, record = search.last, client.provider_record(search.name)
    if record is None and last is not None:
        # If the provider is gone, this request returns an empty list and no error.
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
    """The causes for which the agent keeps new guests away. Each value is the trait that marks the cause."""

    WATERMARK = "CUSTOM_WATERMARK_REACHED"
    MAINTENANCE = "CUSTOM_HOST_DISABLED"


MARKS: Final = frozenset(cause.value for cause in DisableCause)

Causes = Mapping[DisableCause, bool]
"""The causes to keep new guests away, each with whether it is active. If a cause is missing, its state is
unknown, and its mark in Placement does not change.
"""


RELEASE_REASON: Final = "compute-agent release"
"""The reason that the command ``compute-agent release`` records when it keeps new guests away."""


@dataclass(frozen=True, slots=True)
class HostMaintenance:
    """The last request, by an operator or ``compute-agent release``, to keep new guests away or let them in.

    :ivar off: whether new guests are kept away.
    :ivar since: the time of the request, in seconds since the epoch.
    """

    off: bool
    reason: str = ""
    since: float = 0.0

    @property
    def is_of_release(self) -> bool:
        """Whether the command ``compute-agent release``, and no operator, keeps new guests away."""
        return self.off and self.reason == RELEASE_REASON


def switched_traits(traits: frozenset[str], causes: Causes) -> frozenset[str]:
    """The traits of the root after COMPUTE_STATUS_DISABLED and the marks of ``causes`` are set or removed.

    If another program keeps new guests away, the traits do not change.
    """
    if DISABLED in traits and not traits & MARKS:
        return traits
    asking = frozenset(cause.value for cause in DisableCause if causes.get(cause, cause.value in traits))
    return (traits - MARKS - {DISABLED}) | (asking | {DISABLED} if asking else asking)


def in_words(traits: frozenset[str]) -> str:
    """A text that says whether new guests are let in or kept away, and which program or cause decides."""
    if DISABLED not in traits:
        return "let in"
    causes = [cause.name.lower() for cause in DisableCause if cause.value in traits]
    return f"kept away by {' and '.join(causes)}" if causes else f"kept away by {DISABLED} of another program"
