"""The provider tree with what files add to it: a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from compute_agent.inventory.provider_config import COMPUTE_NODE, OPTION, ProviderConfig
from compute_agent.inventory.tree import FIELDS, ProviderNode, ProviderTree
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import OWN_CLASSES


def with_additions(
    tree: ProviderTree, configs: Iterable[ProviderConfig]
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree with what the files add, and what of them has no effect on it, a sentence each.

    What they say of an inventory holds whatever is set through the API, as in Nova. A root that is named by
    its uuid or name gets nothing of what is for ``$COMPUTE_NODE``.

    :raises ConfigError: two of them are of the same provider, or one has what the agent itself provides.
    """
    nodes = {node.uuid: node for node in tree.nodes}
    explicit: dict[str, ProviderConfig] = {}
    default, warnings = None, []
    for config in configs:
        if config.uuid == COMPUTE_NODE:
            default = config
            continue
        node = _find(tree, config)
        if node is None:
            warnings.append(
                f"{OPTION}: {config.source}: there is no provider {config.id} of this host, it is skipped"
            )
            continue
        if (other := explicit.setdefault(node.uuid, config)) is not config:
            raise ConfigError(
                f"{OPTION}: {config.source} and {other.source} define the same provider, {other.id} and"
                f" {config.id}"
            )
    if default is not None:
        explicit.setdefault(tree.root.uuid, default)
    if tree.beside and tree.root.uuid in explicit:
        config = explicit.pop(tree.root.uuid)
        warnings.append(
            f"{OPTION}: {config.source}: {config.id} is nova-compute's and is skipped: put it into the"
            f" {OPTION} of nova-compute"
        )
    for uuid, config in explicit.items():
        nodes[uuid] = _extended(nodes[uuid], config, tree.nodes)
    classes = frozenset(name for config in explicit.values() for name in config.inventories)
    configured = tree.configured | {(name, field) for name in classes for field in FIELDS}
    return replace(tree, nodes=tuple(nodes.values()), configured=configured), tuple(warnings)


def _find(tree: ProviderTree, config: ProviderConfig) -> ProviderNode | None:
    return next((node for node in tree.nodes if config.id == (node.uuid if config.uuid else node.name)), None)


def _extended(node: ProviderNode, config: ProviderConfig, all_nodes: Iterable[ProviderNode]) -> ProviderNode:
    derived = frozenset(name for one in all_nodes for name in one.inventories)
    _refuse(config, "inventories", config.inventories.keys() & (OWN_CLASSES | derived))
    _refuse(config, "traits", config.traits & node.traits)
    return replace(
        node, inventories={**node.inventories, **config.inventories}, traits=node.traits | config.traits
    )


def _refuse(config: ProviderConfig, kind: str, names: Iterable[str]) -> None:
    if common := sorted(names):
        raise ConfigError(
            f"{OPTION}: {config.source}: {kind} of {config.id} that are the agent's own: {', '.join(common)};"
            " remove them from the file"
        )
