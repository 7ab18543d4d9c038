"""Requests CPUs, memory and devices of a guest from one NUMA node, in a single request.

Nova requests amounts of the whole host from Placement, and checks NUMA nodes afterwards
(``hw:pci_numa_affinity_policy``). This module makes a request with ``same_subtree`` instead. Only hosts can
satisfy it on which the providers of NUMA nodes, or providers below them, have CPUs, memory and devices. A
NUMA node satisfies the group ``_NODE``. The same node or its descendants satisfy the other groups, which ask
for CPUs, memory and devices.

If the policy of a device is only a preference, the translation also has a second request, the *fallback*. The
fallback is used if no host satisfies the first request. A guest with several NUMA nodes gets the request that
Nova would send, because each device can be at any of these nodes.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Final

import os_traits

from placement.search.request import CandidatesRequest, RequestGroup
from placement_extras.flavors.guest import FlavorGuest
from placement_extras.flavors.memory import PAGE_CLASSES

# the values of hw:pci_numa_affinity_policy in Nova
LEGACY: Final = "legacy"
PREFERRED: Final = "preferred"
REQUIRED: Final = "required"
SOCKET: Final = "socket"

_OF_NODES: Final = frozenset(("PCPU", "VCPU", "MEMORY_MB", *PAGE_CLASSES.values()))
"""Resource classes that NUMA nodes, or the caches below NUMA nodes, have."""

_NODE: Final = frozenset((os_traits.HW_NUMA_ROOT,))
"""Traits of NUMA nodes."""

Devices = Mapping[str, str | None]
"""For each device, by the suffix of its group, the NUMA policy of its PCI alias; None if the alias has no
policy.
"""


def device_policies(guest: FlavorGuest, devices: Devices) -> Mapping[str, str]:
    """Return the NUMA policy of each device, by the suffix of its group.

    A policy in the flavor or the image takes precedence over the policy of the alias.
    """
    policy = guest.agreed_choice("pci_numa_affinity_policy")
    return {suffix: policy or of_alias or LEGACY for suffix, of_alias in devices.items()}


def within_node(request: CandidatesRequest, policies: Mapping[str, str]) -> CandidatesRequest:
    """Change a request, so that CPUs, memory and all devices come from one NUMA node.

    Traits that the group without a suffix requires or forbids are then required or forbidden of the root,
    because the root has the traits of the host.

    :param policies: the policy of each device, by the suffix of its group. Only the suffixes count here,
        because a device at the NUMA node of the CPUs satisfies every policy.
    """
    whole = next((group for group in request.groups if not group.suffix), RequestGroup())
    rest = {name: amount for name, amount in whole.resources.items() if name not in _OF_NODES}
    groups = [each for each in request.groups if each.suffix]
    used = {each.suffix for each in groups}
    # groups of the extra specs that request amounts of NUMA nodes, such as CPUs with cache ways
    own = [each.suffix for each in groups if not _OF_NODES.isdisjoint(each.resources)]
    together = [RequestGroup(_unused_suffix("_NODE", used), required=(_NODE,))]
    # each class has a group of its own, because different providers can have the classes: for example, a
    # cache has the CPUs, and its NUMA node has the memory. inside=_NODE excludes the root of the tree.
    together += [
        RequestGroup(_unused_suffix(f"_{name}", used), {name: amount}, inside=_NODE)
        for name, amount in whole.resources.items()
        if name in _OF_NODES
    ]
    near = {*own, *policies}
    groups = [replace(each, inside=_NODE) if each.suffix in near else each for each in groups]
    # the group without a suffix keeps classes that NUMA nodes do not have, such as DISK_GB
    return replace(
        request,
        groups=(*([RequestGroup("", rest)] if rest else []), *together, *groups),
        # the policy "isolate" would require a different provider for each of these groups
        group_policy="none",
        root_required=request.root_required.union(*whole.required),
        root_forbidden=request.root_forbidden | whole.forbidden,
        same_subtrees=(frozenset((*(each.suffix for each in together), *own, *policies)),),
    )


def with_devices_apart(near: CandidatesRequest, policies: Mapping[str, str]) -> CandidatesRequest | None:
    """Return a request that allows devices at other NUMA nodes; None if the policy of no device allows this.

    A device with the policy "preferred" is allowed anywhere. A device with the policy "legacy" is allowed
    outside of all known NUMA nodes.

    :param near: the request of :func:`within_node`.
    """
    free = {suffix for suffix, policy in policies.items() if policy in (PREFERRED, LEGACY)}
    if not free:
        return None
    # the request of within_node() has exactly one same_subtree
    (together,) = near.same_subtrees
    groups = [
        replace(each, inside=frozenset(), outside=_NODE if policies[each.suffix] == LEGACY else frozenset())
        if each.suffix in free
        else each
        for each in near.groups
    ]
    return replace(near, groups=tuple(groups), same_subtrees=(together - free,))


def _unused_suffix(suffix: str, used: set[str]) -> str:
    """Return the suffix, or a similar one if ``used`` has the suffix; add the result to ``used``."""
    numbered = map(f"{suffix}_{{}}".format, count())
    found = next(each for each in chain((suffix,), numbered) if each not in used)
    used.add(found)
    return found
