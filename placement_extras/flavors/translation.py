"""Translates a flavor with its image to a request for allocation candidates.

Some extra specs and properties do not affect the request, but Nova refuses a guest if they have wrong values.
So this module checks these values first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import os_resource_classes

from placement.kept_results import KeptResults
from placement.read_model.provider import DISABLED
from placement.search.request import CandidatesRequest, RequestGroup
from placement_extras.flavors import affinity, features, memory, pinning, spelling
from placement_extras.flavors.flavor import NovaFlavor, TranslationRules, refusal_error
from placement_extras.flavors.groups import GroupBuilder, add_devices
from placement_extras.flavors.guest import FlavorGuest, contradiction_error
from placement_extras.flavors.pinning import DEDICATED, MIXED, CpuPinning
from placement_extras.flavors.spelling import FlavorWarnings

_GIB: Final = 1 << 30
# Nova's maximum number of sockets, of cores and of threads, if neither flavor nor image has a maximum
_MAX_TOPOLOGY: Final = 65536
_TOPOLOGY_PARTS: Final = ("sockets", "cores", "threads")


def check_guest(guest: FlavorGuest) -> None:
    """Check those extra specs and properties that do not affect the request."""
    _check_sizes(guest.flavor)
    _check_serial_ports(guest)
    _check_cpu_topology(guest)
    # this call only refuses a contradiction between flavor and image; its result is not needed
    guest.agreed_flag("pmu")
    # Nova ignores this feature for guests with one CPU
    if guest.flavor.vcpus > 1:
        guest.agreed_flag("vif_multiqueue_enabled")
    _check_left_out(guest)


def _check_sizes(flavor: NovaFlavor) -> None:
    image = flavor.image
    if flavor.ram < image.min_ram:
        raise refusal_error(f"the image needs {image.min_ram} MiB of memory, the flavor has {flavor.ram}")
    if flavor.is_volume_backed or not flavor.disk:
        return  # the guest boots from a volume, or its disk has the size of the image
    if flavor.disk < image.min_disk or flavor.disk * _GIB < image.size:
        raise refusal_error(
            f"the image has {image.size} bytes and needs a disk of {image.min_disk} GiB; "
            f"the disk of the flavor has {flavor.disk} GiB"
        )


def _check_serial_ports(guest: FlavorGuest) -> None:
    if not guest.specs.get("hw:serial_port_count", "0"):
        return
    flavor, image = guest.both_numbers("serial_port_count")
    if flavor and image and image > flavor:
        raise contradiction_error("hw", "serial_port_count", str(flavor), str(image))


def _check_cpu_topology(guest: FlavorGuest) -> None:
    """Check sockets, cores and threads.

    The numbers of the image must not exceed its maxima, and its maxima must not exceed those of the flavor.
    """
    for part in _TOPOLOGY_PARTS:
        # in a flavor, sockets, cores and threads are preferences; Nova only checks that they are numbers
        guest.both_numbers(f"cpu_{part}")
        most, most_of_image = guest.both_numbers(f"cpu_max_{part}")
        if most and most_of_image > most:
            raise contradiction_error("hw", f"cpu_max_{part}", str(most), str(most_of_image))
        _, wanted = guest.both_numbers(f"cpu_{part}")
        if wanted > (most_of_image or most or _MAX_TOPOLOGY):
            raise refusal_error(
                f"hw_cpu_{part} of the image is {wanted}, "
                f"but the maximum is {most_of_image or most or _MAX_TOPOLOGY}"
            )


def _check_left_out(guest: FlavorGuest) -> None:
    """Refuse device profiles of Cyborg, because the translated request would lack their devices."""
    if guest.specs.get("accel:device_profile"):
        raise refusal_error(
            "accel:device_profile is a profile of Cyborg, which this service does not read; "
            "ask for devices with resources<suffix>: and trait<suffix>:"
        )


_MIB_OF_GIB = 1024


@dataclass(frozen=True, slots=True)
class FlavorTranslation:
    """The request for a flavor.

    :param fallback: the request that is tried if ``request`` has no candidates, or None. This request asks
        for shared CPUs instead of dedicated CPUs, as Nova does for hosts that do not report PCPU. With the
        option ``numa_affinity``, it asks for dedicated CPUs, but allows devices at other NUMA nodes.
    :param warnings: sentences about parts of the flavor that the translation ignores.
    """

    request: CandidatesRequest
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()


def translate_flavor(flavor: NovaFlavor, rules: TranslationRules) -> FlavorTranslation:
    """Return the request that Nova would send to Placement.

    :raises InvalidRequest: no guest can have this flavor and image.
    """
    return _KEPT_TRANSLATIONS.get((flavor, rules), lambda: _translate_guest(flavor, rules))


# translations are cached, because a cloud has few flavors, and clients often claim the same flavor several
# times in a row
_KEPT_TRANSLATIONS: Final = KeptResults[FlavorTranslation](16 << 20)
"""A cache of recent translations of flavors, with at most 16 MiB."""


def _translate_guest(flavor: NovaFlavor, rules: TranslationRules) -> FlavorTranslation:
    guest = FlavorGuest.of_flavor(flavor)
    check_guest(guest)
    pinned = pinning.read(guest)
    memory.check_locked(guest)
    memory.check_nodes(guest, pinned)
    root = frozenset(features.root_traits(guest, rules))
    warnings = FlavorWarnings()
    gathered = _gather_groups(guest, pinned, rules, warnings)
    spelling.warn_unknown_names(flavor, warnings)
    request = _candidates_request(gathered, root)
    fallback = None
    if _is_within_node(guest, pinned, request, rules, warnings):
        policies = affinity.device_policies(guest, gathered.devices)
        request = affinity.within_node(request, policies)
        fallback = affinity.with_devices_apart(request, policies)
        if {affinity.PREFERRED, affinity.LEGACY} <= {*policies.values()}:
            warnings.add(
                "devices have the policies preferred and legacy, and the second choice is for all of them: "
                "a host with some near, and others not, may be left out"
            )
    elif pinned.policy == DEDICATED and not rules.disable_fallback_pcpu_query:
        # warnings about the fallback are dropped, because the first request has caused the same warnings
        fallback = _candidates_request(_gather_groups(guest, None, rules, FlavorWarnings()), root)
    return FlavorTranslation(request, fallback, warnings.all_sentences())


def _is_within_node(
    guest: FlavorGuest,
    pinned: CpuPinning,
    request: CandidatesRequest,
    rules: TranslationRules,
    warnings: FlavorWarnings,
) -> bool:
    """Return whether CPUs, memory and devices of the guest have to come from one NUMA node.

    Add a warning if ``numa_affinity`` is set, but the number of nodes or the group policy prevents this.
    """
    nodes = memory.node_count(guest, pinned) if rules.numa_affinity else 0
    if nodes > 1:
        warnings.add(
            f"CPUs, memory and devices are requested from the whole host, because the guest has {nodes}"
            " NUMA nodes"
        )
    elif nodes and request.group_policy == "isolate":
        warnings.add(
            "CPUs, memory and devices are requested from the whole host, because group_policy is isolate"
        )
        return False
    return nodes == 1


def _gather_groups(
    guest: FlavorGuest, pinned: CpuPinning | None, rules: TranslationRules, warnings: FlavorWarnings
) -> GroupBuilder:
    """Build the groups of a request; if ``pinned`` is None, without the CPU policy, as in Nova's fallback."""
    groups = GroupBuilder(rules.own_classes, warnings)
    groups.add_specs(guest.specs)
    if pinned is not None:
        _add_cpus(groups, guest.flavor.vcpus, pinned)
    add_devices(groups, guest, rules)
    # an amount in the extra specs replaces the amount of the flavor, even if it is 0
    if not groups.has_amount("VCPU") and not groups.has_amount("PCPU"):
        groups.set_amount("VCPU", guest.flavor.vcpus)
    if not groups.has_amount("MEMORY_MB"):
        pages = memory.huge_pages(guest) if rules.huge_pages else None
        groups.set_amount(*(pages or ("MEMORY_MB", guest.flavor.ram)))
    if not groups.has_amount("DISK_GB"):
        groups.set_amount("DISK_GB", _disk_size(guest.flavor))
    encryption = memory.find_encryption(guest)
    if encryption is not None:
        # each guest with encrypted memory needs a key of the CPU, and hosts have few keys
        groups.set_amount("MEM_ENCRYPTION_CONTEXT", 1)
        groups.require_traits(encryption.trait)
    # each label stands for one namespace of persistent memory; equal labels are counted
    labels = Counter(
        os_resource_classes.normalize_name(f"PMEM_NAMESPACE_{each}")
        for each in memory.persistent_labels(guest)
    )
    for name, number in labels.items():
        groups.set_amount(name, number)
    groups.require_traits(*features.provider_traits(guest))
    return groups


def _add_cpus(groups: GroupBuilder, vcpus: int, pinned: CpuPinning) -> None:
    if pinned.policy in (DEDICATED, MIXED):
        dedicated = pinned.dedicated.bit_count()
        if pinned.policy == MIXED:
            groups.set_amount("VCPU", vcpus - dedicated)
        # isolated emulator threads need one more dedicated CPU
        groups.set_amount("PCPU", dedicated + pinned.emulator_is_isolated)
    if pinned.threads == pinning.ISOLATE:
        groups.forbid_trait(pinning.THREADS)
    elif pinned.threads == pinning.REQUIRE:
        groups.require_traits(pinning.THREADS)


def _disk_size(flavor: NovaFlavor) -> int:
    """Return the sum of root disk (unless it is a volume), ephemeral disk and swap in GiB, rounded up."""
    root = 0 if flavor.is_volume_backed else flavor.disk
    return root + flavor.ephemeral - -flavor.swap // _MIB_OF_GIB  # two minus signs round the quotient up


def _candidates_request(gathered: GroupBuilder, root: frozenset[str]) -> CandidatesRequest:
    groups = gathered.build_groups()
    policy = gathered.group_policy()
    _check_groups(groups, policy)
    return CandidatesRequest(
        groups=groups,
        group_policy=policy,
        root_required=root,
        # Nova's scheduler always forbids hosts that an operator has disabled
        root_forbidden=frozenset((DISABLED,)),
    )


def _check_groups(groups: tuple[RequestGroup, ...], policy: str | None) -> None:
    """Refuse a request that Nova would send and Placement would refuse."""
    for group in groups:
        which = f"the group {group.suffix}" if group.suffix else "the group without a suffix"
        if not group.resources:
            raise refusal_error(f"{which} has traits, but no resources")
        for traits in group.required:
            if traits <= group.forbidden:
                raise refusal_error(f"{which} requires and forbids the trait {', '.join(traits)}")
    if not groups:
        raise refusal_error("it requests no resources")
    if policy is None and sum(group.suffix != "" for group in groups) > 1:
        raise refusal_error(
            "its extra specs have more than one group with a suffix, so they need group_policy, "
            "none or isolate"
        )
