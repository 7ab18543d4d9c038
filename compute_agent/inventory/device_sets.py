"""Sets of PCI devices that a guest gets only as a whole, such as partitions of an NVSwitch.

The functions are pure. A set is a provider with a trait, above the providers of its members. Two sets have no
member in common, unless one contains the other. A request for a set has one request group for each member,
all below a provider with the trait. So the request does not fit a set if another guest has one of the
members.

An example: the four GPUs of a NUMA node are one set of four, and two sets of two. The provider of the NUMA
node gets the trait of the set of four. Each set of two gets a provider below the provider of the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.host.pci_devices import PCI_ADDRESS
from compute_agent.inventory.device_spec import named_devices, parse_json
from compute_agent.inventory.provider_tree import (
    NAME_LIMIT,
    ProviderNode,
    ProviderTree,
    child_uuid,
    nodes_below,
)
from compute_agent.model.messages import ConfigError

OPTION: Final = "[pci] device_set"

# The name becomes a part of a trait, and of the provider's name.
_NAME: Final = re.compile("[A-Z0-9_]{1,64}")


@dataclass(frozen=True, slots=True)
class DeviceSet:
    """A set of devices.

    :ivar name: the name of this kind of set, such as ``GPU_PAIR``. Several sets of a host can have the same
        name.
    :ivar addresses: the PCI addresses of the members of the set.
    """

    name: str
    addresses: frozenset[str]

    @property
    def provider_trait(self) -> str:
        """The trait of the provider above the members."""
        return f"CUSTOM_{self.name}"


def parse_device_sets(texts: Iterable[str]) -> tuple[DeviceSet, ...]:
    """Parse the values of the option, such as ``{"name": "GPU_PAIR", "addresses": ["0000:81:00.0", ...]}``.

    :raises ConfigError: a value is wrong; the message names it.
    """
    return tuple(map(_parse_set, texts))


def _parse_set(text: str) -> DeviceSet:
    def wrong_value(what: str) -> ConfigError:
        return ConfigError(f"{OPTION}: {text!r}: {what}")

    said = parse_json(OPTION, text)
    if not isinstance(said, dict) or said.keys() != {"name", "addresses"}:
        raise wrong_value("an object with name and addresses is needed")
    name, addresses = said["name"], said["addresses"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong_value("the name needs 1 to 64 capital letters, digits and underscores")
    if not isinstance(addresses, list) or not all(isinstance(each, str) for each in addresses):
        raise wrong_value("addresses is no list of texts")
    known = [each.lower() for each in addresses]
    if bad := [each for each in known if not PCI_ADDRESS.fullmatch(each)]:
        raise wrong_value(f"{bad[0]!r} is no address such as 0000:81:00.0")
    if len({*known}) < max(2, len(known)):
        raise wrong_value("at least two different addresses are needed")
    return DeviceSet(name, frozenset(known))


def with_device_sets(tree: ProviderTree, sets: Sequence[DeviceSet]) -> tuple[ProviderTree, tuple[str, ...]]:
    """Add the traits and providers of sets to a tree that contains the devices.

    :return: the tree, and warnings about sets that cannot be offered.
    """
    warnings = []
    # The largest set comes first, so that smaller sets are placed inside it.
    for each in sorted(sets, key=lambda one: (-len(one.addresses), sorted(one.addresses))):
        tree, reason = _with_set(tree, each)
        if reason:
            shown = named_devices(sorted(each.addresses))
            warnings.append(f"{OPTION}: the set {each.name} of {shown} is not offered: {reason}")
    return tree, tuple(warnings)


def _with_set(tree: ProviderTree, wanted: DeviceSet) -> tuple[ProviderTree, str]:
    """Return the tree with the set and an empty text, or the unchanged tree and the reason."""
    devices = {node.device: node for node in tree.nodes if node.inventories and node.device}
    if missing := wanted.addresses - devices.keys():
        return tree, f"the host does not offer {named_devices(sorted(missing))}"
    # A request for the set names the classes of its members, so devices of other classes below the same
    # provider do not matter.
    classes = {name for address in wanted.addresses for name in devices[address].inventories}
    alike = {
        node.uuid: address for address, node in devices.items() if not classes.isdisjoint(node.inventories)
    }
    parents = {node.uuid: node.parent for node in tree.nodes}
    below: dict[str, set[str]] = {}
    for provider, address in alike.items():
        for each in _lineage_of(provider, parents):
            below.setdefault(each, set()).add(address)
    # The set is placed at the lowest provider that has all members below it. Members have no child providers.
    members = [devices[address].uuid for address in wanted.addresses]
    common = set.intersection(*({*_lineage_of(each, parents)} for each in members))
    top = next(each for each in _lineage_of(members[0], parents) if each in common)
    above = next(node for node in tree.nodes if node.uuid == top)
    if below[top] == wanted.addresses:
        if tree.beside and above is tree.root:
            return tree, "its provider would be the root, which nova-compute writes"
        marked = replace(above, traits=above.traits | {wanted.provider_trait})
        return replace(tree, nodes=tuple(marked if node is above else node for node in tree.nodes)), ""
    branches = {
        node.uuid
        for node in tree.nodes
        if node.parent == top and below.get(node.uuid, set()) & wanted.addresses
    }
    if set[str]().union(*(below[each] for each in branches)) != wanted.addresses:
        return tree, "another set, switch or NUMA node has some of its devices with others of their class"
    if any(node.uuid in branches and not node.device for node in tree.nodes):
        return tree, "it has the devices of some NUMA nodes, and of others not"
    changed = replace(tree, nodes=tuple(_with_provider(tree, wanted, above, branches)))
    if any(len(node.name) > NAME_LIMIT for node in changed.nodes):
        return tree, f"the name of its provider would have more than {NAME_LIMIT} characters"
    return changed, ""


def _lineage_of(provider: str, parents: Mapping[str, str | None]) -> Iterator[str]:
    """The uuid of a provider and the uuids of its ancestors, from the provider up to the root."""
    at: str | None = provider
    while at is not None:
        yield at
        at = parents[at]


def _with_provider(
    tree: ProviderTree, wanted: DeviceSet, above: ProviderNode, branches: set[str]
) -> Iterator[ProviderNode]:
    """Yield all providers of the tree and a new provider for the set, between ``above`` and ``branches``.

    :param above: the provider that becomes the parent of the new provider.
    :param branches: the uuids of the children of ``above`` that move below the new provider.
    """
    first = min(wanted.addresses)
    place = f"{wanted.name}_{len(wanted.addresses)}_{first}"
    new = ProviderNode(
        name=f"{tree.root.name}_{place}",
        uuid=child_uuid(tree.root.uuid, f"SET_{place}"),
        parent=above.uuid,
        traits=frozenset((wanted.provider_trait,)),
        numa_nodes=nodes_below(tree.root, above),
        device=place,
    )
    is_added = False
    for node in tree.nodes:
        if node.uuid not in branches:
            yield node
            continue
        # The new provider is inserted before its children, because parents come first in a tree.
        if not is_added:
            is_added = True
            yield new
        yield replace(node, parent=new.uuid)
