"""Whose the root provider of this host is, found out before each report, and followed where it goes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from oslo_config import cfg

from compute_agent.inventory.derive import BESIDE
from compute_agent.inventory.options import hypervisor_name
from compute_agent.model.messages import called
from compute_agent.pipeline.world import HostState
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


class RootWatch:
    """For the thread of reports; ``owner`` for others as well."""

    def __init__(
        self,
        options: cfg.ConfigOpts,
        own: str,
        last: NovaRoot | None,
        decided: bool,
        keep: Callable[[NovaRoot | None], None],
        use: Callable[[RootOwner], None],
    ) -> None:
        """``own`` is the uuid of the agent's own root, ``last`` what ``keep`` was last called with.

        ``decided``: the agent has reported a root of its own before. ``use`` has the whole agent work with
        another root.
        """
        self._options = options
        self._own = own
        self._last = last
        self._decided = decided
        self._keep = keep
        self._use = use
        self._contested = False

    @property
    def owner(self) -> RootOwner:
        """Whose the root is, as far as it is known."""
        return owner_of(self._options.compute.provider_tree, self._last, self._decided)

    def reload(self, options: cfg.ConfigOpts) -> None:
        """Go by another configuration from now on."""
        self._options = options

    def follow(self, client: PlacementClient, reporter: HostReporter, world: HostState) -> None:
        """Find the root, and have the agent work with it if ``world`` has another.

        :raises RootMissingError: nova-compute has to make it first.
        :raises PlacementError:
        :raises OSError: it cannot be remembered.
        """
        shape = self._options.compute.provider_tree
        if shape not in (None, BESIDE):
            self._warn_if_contested(shape, reporter)
            self._remember(None)
        elif shape == BESIDE or self._last or not self._decided or self._is_taken(reporter):
            self._remember(self._find(client, reporter, shape))
        self._decided = True
        owner = self.owner
        if _differs(world, owner):
            if owner.novas is not None:
                root = called(owner.novas.name, owner.novas.uuid)
                LOG.info("The root provider is nova-compute's, %s: what the agent offers is below it", root)
            self._use(owner)

    def _is_taken(self, reporter: HostReporter) -> bool:
        """Whether the agent's own root is one that nova-compute writes, too."""
        return is_novas(reporter.root_traits(self._own) or frozenset())

    def _warn_if_contested(self, shape: str, reporter: HostReporter) -> None:
        contested = self._is_taken(reporter)
        if contested and not self._contested:
            LOG.warning(
                "nova-compute writes the root provider of this host, too: set [compute] provider_tree = %s"
                " instead of %s, or both undo what the other writes",
                BESIDE,
                shape,
            )
        self._contested = contested

    def _find(self, client: PlacementClient, reporter: HostReporter, shape: str | None) -> NovaRoot | None:
        name = hypervisor_name(self._options)
        last = NovaRoot(self._own, name) if self._last is None and self._is_taken(reporter) else self._last
        search = RootSearch(name, self._own, True if shape == BESIDE else None, last)
        try:
            found = find_root(client, search)
        except FormerRootError as error:
            stays = "; ".join(f"{each}: {each.reason}" for each in reporter.remove_own(self._own).refusals)
            if stays:
                raise RootMissingError(f"{error}, and which cannot be removed: {stays}") from error
            raise
        except RootMissingError:
            reporter.forget()
            raise
        if found is not None and last is not None and found.name != last.name and found.uuid == last.uuid:
            LOG.warning("The provider %s of nova-compute is called %s now", last.name, found.name)
        return found

    def _remember(self, root: NovaRoot | None) -> None:
        if root != self._last:
            self._keep(root)
            self._last = root


def _differs(world: HostState, owner: RootOwner) -> bool:
    root = world.tree.root
    present = (world.root_known, world.tree.beside)
    return present != (owner.known, owner.beside) or (
        owner.novas is not None and (root.uuid, root.name) != (owner.novas.uuid, owner.novas.name)
    )
