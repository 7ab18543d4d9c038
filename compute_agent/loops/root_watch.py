"""Watches the root provider of the host, which can belong to nova-compute and can be replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from oslo_config import cfg

from compute_agent.inventory.derive import BESIDE
from compute_agent.inventory.options import hypervisor_name
from compute_agent.model.messages import full_name
from compute_agent.pipeline.host_state import HostState
from compute_agent.report.client import PlacementClient
from compute_agent.report.reporter import HostReporter
from compute_agent.report.root_provider import (
    FormerRootError,
    NovaRoot,
    RootMissingError,
    RootOwner,
    RootSearch,
    find_root,
    is_novas,
    owner_of,
)

LOG = logging.getLogger(__name__)


class KeepRoot(Protocol):
    """Stores which root provider of nova-compute the agent puts its providers below."""

    def __call__(self, root: NovaRoot | None, /) -> None:
        """Store the root; None means the agent's own root. The data is on disk when this function returns.

        :raises OSError: the root cannot be written.
        """
        ...


class UseRoot(Protocol):
    """Makes the whole agent put its providers below another root provider."""

    def __call__(self, owner: RootOwner, /) -> None:
        """Put the agent's providers below the owner's root. The worker has the new tree afterwards.

        :raises ConfigError: the configuration cannot be used with this root.
        :raises TimeoutError: the worker does not answer in time.
        """
        ...


HypervisorName = Callable[[], str]
"""Returns the name of this host according to its hypervisor; empty until the hypervisor has answered."""


class RootWatch:
    """Finds the root provider before each report, and warns if nova-compute writes the agent's root."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        own: str,
        last: NovaRoot | None,
        decided: bool,
        keep_root: KeepRoot,
    ) -> None:
        """Begin with the known roots: the agent's own, and the root of nova-compute that was used last.

        :param own: the uuid of the root provider that the agent makes if there is no nova-compute.
        :param last: the root of nova-compute that was stored last.
        :param decided: whether the agent has already reported a root of its own.
        """
        self._options = options
        self._own = own
        self._last = last
        self._decided = decided
        self._keep_root = keep_root
        self._contested = False
        self._hypervisor: HypervisorName | None = None

    @property
    def owner(self) -> RootOwner:
        """The owner of the root provider, as far as the agent knows it."""
        return owner_of(self._options.compute.provider_tree, self._last, self._decided)

    def reload(self, options: cfg.ConfigOpts) -> None:
        """Use the options of another configuration from the next report on."""
        self._options = options

    def use_hypervisor(self, name: HypervisorName) -> None:
        """Set the function that returns the name of the host.

        It is used if the configuration names no host.
        """
        self._hypervisor = name

    def follow_root(
        self, client: PlacementClient, reporter: HostReporter, host_state: HostState
    ) -> RootOwner | None:
        """Find the root provider; return its owner if it is not the owner in ``host_state``, otherwise None.

        :raises RootMissingError: nova-compute has to create the root first.
        :raises PlacementError: Placement does not answer, or refuses a request.
        :raises OSError: the found root cannot be stored.
        """
        shape = self._options.compute.provider_tree
        if shape not in (None, BESIDE):
            self._warn_if_contested(shape, reporter)
            self._remember_root(None)
        elif shape == BESIDE or self._last or not self._decided or self._is_taken(reporter):
            self._remember_root(self._find_root(client, reporter, shape))
        self._decided = True
        owner = self.owner
        if not _differs_from(host_state, owner):
            return None
        if owner.novas is not None:
            root = full_name(owner.novas.name, owner.novas.uuid)
            LOG.info("nova-compute owns the root provider %s: the agent's providers are below it", root)
        return owner

    def _is_taken(self, reporter: HostReporter) -> bool:
        """Whether nova-compute writes the same root provider as the agent."""
        return is_novas(reporter.root_traits(self._own) or frozenset())

    def _warn_if_contested(self, shape: str, reporter: HostReporter) -> None:
        contested = self._is_taken(reporter)
        if contested and not self._contested:
            LOG.warning(
                "nova-compute writes the root provider of this host, too: set [compute] provider_tree ="
                " %s instead of %s. Otherwise the agent and nova-compute undo each other's changes",
                BESIDE,
                shape,
            )
        self._contested = contested

    def _find_root(
        self, client: PlacementClient, reporter: HostReporter, shape: str | None
    ) -> NovaRoot | None:
        name = self._root_name()
        # If nova-compute writes the agent's own root, this provider belongs to nova-compute.
        last = NovaRoot(self._own, name) if self._last is None and self._is_taken(reporter) else self._last
        search = RootSearch(name, self._own, True if shape == BESIDE else None, last)
        try:
            found = find_root(client, search)
        except FormerRootError as error:
            # The agent's former root has the name that nova-compute needs, so the agent removes this root.
            stays = "; ".join(f"{each}: {each.reason}" for each in reporter.remove_own(self._own).refusals)
            if stays:
                raise RootMissingError(f"{error}, and which cannot be removed: {stays}") from error
            raise
        except RootMissingError:
            # The providers that were read before are forgotten, because they belong to a root that is gone.
            reporter.forget_providers()
            raise
        if found is not None and last is not None and found.name != last.name and found.uuid == last.uuid:
            LOG.warning("The provider %s of nova-compute now has the name %s", last.name, found.name)
        return found

    def _root_name(self) -> str:
        """The name of nova-compute's root provider, which need not exist yet.

        :raises RootMissingError: the hypervisor has not returned its name yet.
        """
        if self._options.compute.resource_provider_name or self._hypervisor is None:
            return hypervisor_name(self._options)
        if name := self._hypervisor():
            return name
        # The name is not guessed: with a wrong name, the agent would create a root of its own next to
        # nova-compute's.
        if self._last is None:
            raise RootMissingError(
                "waiting for libvirtd, which tells the name of this host in Nova: start libvirtd, or set"
                " [compute] resource_provider_name"
            )
        return self._last.name

    def _remember_root(self, root: NovaRoot | None) -> None:
        if root != self._last:
            self._keep_root(root)
            self._last = root


def _differs_from(host_state: HostState, owner: RootOwner) -> bool:
    root = host_state.tree.root
    present = (host_state.root_known, host_state.tree.beside)
    return present != (owner.known, owner.beside) or (
        owner.novas is not None and (root.uuid, root.name) != (owner.novas.uuid, owner.novas.name)
    )
