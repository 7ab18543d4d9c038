"""Translates a flavor with its image to a request for allocation candidates.

Some extra specs and properties do not affect the request, but Nova refuses a guest if they have wrong values.
So this module checks these values first (:func:`check_guest`).

The traits of the request come from features of the guest: :func:`provider_traits` and :func:`root_traits`.

With the option ``numa_affinity``, CPUs, memory and devices come from one NUMA node, in a single request
(:func:`within_node`). Nova requests amounts of the whole host from Placement, and checks NUMA nodes
afterwards (``hw:pci_numa_affinity_policy``). This module makes a request with ``same_subtree`` instead. Only
hosts can satisfy it on which the providers of NUMA nodes, or providers below them, have CPUs, memory and
devices. A NUMA node satisfies the group ``_NODE``. The same node or its descendants satisfy the other groups,
which ask for CPUs, memory and devices.

If the policy of a device is only a preference, the translation also has a second request, the *fallback*. The
fallback is used if no host satisfies the first request. A guest with several NUMA nodes gets the request that
Nova would send, because each device can be at any of these nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Final

import os_resource_classes
import os_traits

from placement import microversion
from placement.kept_results import KeptResults
from placement.read_model.provider import DISABLED
from placement.schemas.request_form import AskedCandidates
from placement.search.request import CandidatesRequest, RequestGroup
from placement_extras.flavors import memory, pinning, spelling
from placement_extras.flavors.flavor import NovaFlavor, TranslationRules, refusal_error
from placement_extras.flavors.groups import GroupBuilder, add_devices
from placement_extras.flavors.guest import FlavorGuest, contradiction_error
from placement_extras.flavors.memory import PAGE_CLASSES, has_stateless_firmware
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


def translate_flavor(flavor: NovaFlavor, rules: TranslationRules) -> AskedCandidates:
    """Return the request that Nova would send to Placement.

    The fallback asks for shared CPUs instead of dedicated CPUs, as Nova does for hosts that do not report
    PCPU. With the option ``numa_affinity``, it asks for dedicated CPUs, but allows devices at other NUMA
    nodes. The warnings are about parts of the flavor that the translation ignores.

    :raises InvalidRequest: no guest can have this flavor and image.
    """
    return _KEPT_TRANSLATIONS.get((flavor, rules), lambda: _translate_guest(flavor, rules))


# translations are cached, because a cloud has few flavors, and clients often claim the same flavor several
# times in a row
_KEPT_TRANSLATIONS: Final = KeptResults[AskedCandidates](16 << 20)
"""A cache of recent translations of flavors, with at most 16 MiB."""


def _translate_guest(flavor: NovaFlavor, rules: TranslationRules) -> AskedCandidates:
    guest = FlavorGuest.of_flavor(flavor)
    check_guest(guest)
    pinned = pinning.read(guest)
    memory.check_locked(guest)
    memory.check_nodes(guest, pinned)
    root = frozenset(root_traits(guest, rules))
    warnings = FlavorWarnings()
    gathered = _gather_groups(guest, pinned, rules, warnings)
    spelling.warn_unknown_names(flavor, warnings)
    request = _candidates_request(gathered, root)
    fallback = None
    if _is_within_node(guest, pinned, request, rules, warnings):
        policies = device_policies(guest, gathered.devices)
        request = within_node(request, policies)
        fallback = with_devices_apart(request, policies)
        if {PREFERRED, LEGACY} <= {*policies.values()}:
            warnings.add(
                "devices have the policies preferred and legacy, and the second choice is for all of them: "
                "a host with some near, and others not, may be left out"
            )
    elif pinned.policy == DEDICATED and not rules.disable_fallback_pcpu_query:
        # warnings about the fallback are dropped, because the first request has caused the same warnings
        fallback = _candidates_request(_gather_groups(guest, None, rules, FlavorWarnings()), root)
    return AskedCandidates(request, microversion.MAX, fallback, warnings.all_sentences())


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
    groups.require_traits(*provider_traits(guest))
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


# for each image property, the first part of the names of its traits. The value of the property is the rest of
# the name, as in Nova's image_metadata_prefilter.
_PREFIXES: Final[Mapping[str, str]] = {
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL",
    "hw_architecture": "HW_ARCH",
    "hw_emulation_architecture": "COMPUTE_ARCH",
    "hw_viommu_model": "COMPUTE_VIOMMU",
}
_TPM_VERSIONS: Final[Mapping[str, str]] = {
    "1.2": "COMPUTE_SECURITY_TPM_1_2",
    "2.0": "COMPUTE_SECURITY_TPM_2_0",
}
_TPM_MODELS: Final[Mapping[str, str]] = {
    "tpm-tis": "COMPUTE_SECURITY_TPM_TIS",
    "tpm-crb": "COMPUTE_SECURITY_TPM_CRB",
}
_ADDRESS_SPACES: Final[Mapping[str, str]] = {
    "passthrough": "COMPUTE_ADDRESS_SPACE_PASSTHROUGH",
    "emulate": "COMPUTE_ADDRESS_SPACE_EMULATED",
}


def provider_traits(guest: FlavorGuest) -> Iterator[str]:
    """Yield the traits that the group without a suffix requires."""
    yield from guest.image.traits
    if tpm := _tpm_traits(guest):
        yield from tpm
    if guest.agreed_choice("pci_numa_affinity_policy") == "socket":
        yield "COMPUTE_SOCKET_PCI_NUMA_AFFINITY"
    if guest.agreed_choice("secure_boot", "os") == "required":
        yield "COMPUTE_SECURITY_UEFI_SECURE_BOOT"
    if mode := guest.agreed_choice("maxphysaddr_mode"):
        yield _ADDRESS_SPACES[mode]
    if has_stateless_firmware(guest):
        yield "COMPUTE_SECURITY_STATELESS_FIRMWARE"


def root_traits(guest: FlavorGuest, rules: TranslationRules) -> Iterator[str]:
    """Yield the traits that the request requires of the root provider, which is the host."""
    if rules.query_placement_for_image_type_support:
        yield from _image_type(guest)
    if rules.image_metadata_prefilter:
        yield from _device_traits(guest)
    if rules.require_owner_nova:
        yield "OWNER_NOVA"
    if guest.agreed_flag("virtio_packed_ring"):
        yield "COMPUTE_NET_VIRTIO_PACKED"
    if guest.agreed_flag("ephemeral_encryption"):
        yield "COMPUTE_EPHEMERAL_ENCRYPTION"
        if kind := guest.agreed_choice("ephemeral_encryption_format"):
            yield f"COMPUTE_EPHEMERAL_ENCRYPTION_{kind.upper()}"
    if guest.agreed_choice("sound_model") == "virtio":
        yield "COMPUTE_SOUND_MODEL_VIRTIO"
    if _tpm_traits(guest):
        yield _tpm_secrets(guest)


def _tpm_traits(guest: FlavorGuest) -> tuple[str, str] | None:
    version = guest.agreed_choice("tpm_version")
    if not version:
        return None
    model = guest.agreed_choice("tpm_model") or "tpm-tis"  # Nova's default
    if model == "tpm-crb" and version != "2.0":  # TPM 1.2 has no CRB interface
        raise refusal_error("hw:tpm_model=tpm-crb needs hw:tpm_version=2.0")
    return _TPM_VERSIONS[version], _TPM_MODELS[model]


def _tpm_secrets(guest: FlavorGuest) -> str:
    security = guest.specs.get("hw:tpm_secret_security") or "user"  # Nova's default without this extra spec
    if security not in ("user", "host", "deployment"):
        raise refusal_error(
            f"hw:tpm_secret_security cannot be {security!r}, only one of user, host, deployment"
        )
    return f"COMPUTE_SECURITY_TPM_SECRET_SECURITY_{security.upper()}"


def _image_type(guest: FlavorGuest) -> Iterator[str]:
    disk_format = guest.flavor.image.disk_format
    # a guest that boots from a volume needs no image on its host
    if disk_format and not guest.flavor.is_volume_backed:
        trait = f"COMPUTE_IMAGE_TYPE_{disk_format.upper()}"
        if hasattr(os_traits, trait):  # Nova asks for standard traits only
            yield trait


def _device_traits(guest: FlavorGuest) -> list[str]:
    """Return the traits for properties of the image. If one value has no trait, return none, as Nova does."""
    traits = [
        f"{prefix}_{guest.image.texts[name].replace('-', '_').upper()}"
        for name, prefix in _PREFIXES.items()
        if name in guest.image.texts
    ]
    return traits if all(hasattr(os_traits, trait) for trait in traits) else []


# two of the values of hw:pci_numa_affinity_policy in Nova
LEGACY: Final = "legacy"
PREFERRED: Final = "preferred"

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
