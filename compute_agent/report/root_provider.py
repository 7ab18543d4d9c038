"""The root provider of a host, which is nova-compute's or the agent's, and its status for new guests.

nova-compute makes a provider with the name of its hypervisor and replaces all of its inventories again and
again. So where the root is Nova's, recognised by traits that only nova-compute sets (``COMPUTE_...``), the
agent writes nothing of it and has its inventories in providers below.

Nova's scheduler forbids COMPUTE_STATUS_DISABLED whatever a flavor asks for. nova-compute sets the trait for
a disabled service. The agent sets it while at least one of its own causes holds, and marks each cause with
a trait: so several causes share one switch, a lost state file can be read back, and a switch without a mark
is somebody else's and stays.
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


@dataclass(frozen=True, slots=True)
class NovaRoot:
    """The root provider that nova-compute made for this host."""

    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class RootSearch:
    """How it is looked for.

    ``name`` is that of the hypervisor, ``own`` the uuid of the agent's own root. ``beside``: the ini file
    says that there is a nova-compute; None: that is to be found out. ``last`` is the root as it was found
    last.
    """

    name: str
    own: str
    beside: bool | None = None
    last: NovaRoot | None = None


@dataclass(frozen=True, slots=True)
class RootOwner:
    """Whose the root provider is.

    ``beside``: nova-compute's, which is ``novas`` as far as it is there. ``known``: that is certain, so that
    it can be told which allocations are of this host.
    """

    beside: bool = False
    novas: NovaRoot | None = None
    known: bool = True


def whose(beside: bool) -> str:
    """The owner of a root provider in words: nova-compute, if the agent is ``beside``, or the agent."""
    return "nova-compute's" if beside else "the agent's"


def owner_of(shape: str | None, last: NovaRoot | None = None, decided: bool = True) -> RootOwner:
    """As the ini file says in [compute] provider_tree, where nova-compute's last root was ``last``.

    ``decided``: it has been found out, where the ini file does not say.
    """
    if shape == BESIDE or (shape is None and last is not None):
        return RootOwner(True, last, last is not None)
    return RootOwner(known=decided or shape is not None)


class RootMissingError(PlacementError):
    """nova-compute owns the root, and there is none so far, or not any more: nothing can be reported."""

    def __init__(self, detail: str) -> None:
        super().__init__("GET", "/resource_providers", detail)
        self.args = (detail,)


class FormerRootError(RootMissingError):
    """The agent's own root of before has the name that nova-compute needs."""


def is_novas(traits: frozenset[str]) -> bool:
    """Whether nova-compute keeps the provider that has these traits."""
    return any(trait.startswith("COMPUTE_") for trait in traits - _ALSO_OURS)


def find_root(client: PlacementClient, search: RootSearch) -> NovaRoot | None:
    """Nova's root; None where the root is the agent's own.

    The name decides; a root that has another one by now is known by its uuid.

    :raises RootMissingError: it has to be waited for.
    :raises PlacementError:
    """
    if search.beside is False:
        return None
    last, record = search.last, client.provider_record(search.name)
    if record is None and last is not None:
        record = next((one for one in client.providers_in_tree(last.uuid) if one.uuid == last.uuid), None)
    if search.beside is None and last is None:
        return _discovered(client, record)
    if record is None:
        hint = "" if search.beside else "; if it is gone for good, set [compute] provider_tree"
        raise RootMissingError(
            f"waiting for nova-compute to make the provider {search.name}: its name is [compute]"
            f" resource_provider_name, else that of the hypervisor{hint}"
        )
    if record.parent_uuid is not None:
        raise RootMissingError(
            f"the provider {full_name(record.name, record.uuid)} is below another one, and so is no root of"
            " nova-compute's: [compute] resource_provider_name has to be the hypervisor's name in Nova"
        )
    if record.uuid == search.own and not is_novas(client.traits(record.uuid)[0]):
        raise FormerRootError(
            f"waiting for nova-compute to make the provider {search.name}, which the agent itself made before"
        )
    return NovaRoot(record.uuid, record.name)


def _discovered(client: PlacementClient, record: ProviderRecord | None) -> NovaRoot | None:
    if record is None or record.parent_uuid is not None or not is_novas(client.traits(record.uuid)[0]):
        return None
    return NovaRoot(record.uuid, record.name)


DISABLED: Final = "COMPUTE_STATUS_DISABLED"


class DisableCause(enum.StrEnum):
    """Why the agent keeps new guests away; the values are the traits that mark it."""

    WATERMARK = "CUSTOM_WATERMARK_REACHED"
    MAINTENANCE = "CUSTOM_HOST_DISABLED"


MARKS: Final = frozenset(cause.value for cause in DisableCause)

Causes = Mapping[DisableCause, bool]
"""Whether each cause keeps new guests away. One that is absent is not known: its mark stays as it is."""


RELEASE_REASON: Final = "compute-agent release"
"""The reason with which a release keeps new guests away."""


@dataclass(frozen=True, slots=True)
class HostMaintenance:
    """The last order of an operator, or of a release: whether the host is ``off``, with reason and time.

    ``since`` is in seconds since the epoch.
    """

    off: bool
    reason: str = ""
    since: float = 0.0

    @property
    def is_of_release(self) -> bool:
        """Whether a release keeps new guests away, where no operator did."""
        return self.off and self.reason == RELEASE_REASON


def switched(traits: frozenset[str], causes: Causes) -> frozenset[str]:
    """The traits of the root provider with new guests kept away as long as there is any cause."""
    if DISABLED in traits and not traits & MARKS:
        return traits
    asking = frozenset(cause.value for cause in DisableCause if causes.get(cause, cause.value in traits))
    return (traits - MARKS - {DISABLED}) | (asking | {DISABLED} if asking else asking)


def in_words(traits: frozenset[str]) -> str:
    """The program that keeps new guests away by these traits of the root provider, in words."""
    if DISABLED not in traits:
        return "let in"
    causes = [cause.name.lower() for cause in DisableCause if cause.value in traits]
    return f"kept away by {' and '.join(causes)}" if causes else f"kept away by somebody else's {DISABLED}"
