"""Whose the root provider of this host is, for whoever just looks: asked of Placement, changing nothing."""

from __future__ import annotations

from oslo_config import cfg

from compute_agent.inventory.derive import BESIDE
from compute_agent.inventory.options import hypervisor_name
from compute_agent.model.messages import called
from compute_agent.pipeline.state import AgentState
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.root_provider import (
    RootMissingError,
    RootOwner,
    RootSearch,
    find_root,
    owner_of,
    whose,
)


def look_up_owner(
    conf: cfg.ConfigOpts, client: PlacementClient, state: AgentState, own: str
) -> tuple[RootOwner, str, str]:
    """Whose the root is, that in words, and why Placement cannot be asked, empty if it can be.

    ``own`` is the uuid of the agent's own root.
    """
    shape = conf.compute.provider_tree
    name = hypervisor_name(conf)
    explicit_own = shape not in (None, BESIDE)
    last = None if explicit_own else state.nova_root
    presumed = owner_of(shape, last, bool(state.owned))
    try:
        found = find_root(client, RootSearch(name, own, True if shape == BESIDE else None, last))
    except RootMissingError as error:
        return presumed, str(error), ""
    except PlacementError as error:
        unasked = f"Placement cannot be asked: {error}"
        return presumed, f"{whose(presumed.beside)}, as far as is known: {unasked}", unasked
    if found is None:
        return RootOwner(), whose(False), ""
    root = f"{whose(True)}, {called(found.name, found.uuid)}"
    if explicit_own:
        return RootOwner(), f"{root}: set [compute] provider_tree = {BESIDE}, or both write it for ever", ""
    return RootOwner(True, found), root, ""
