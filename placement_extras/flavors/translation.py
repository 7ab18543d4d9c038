"""From a flavor with its image to a request for allocation candidates.

Some extra specs affect no request, but Nova refuses a guest with a wrong value; these are checked first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import os_resource_classes

from placement.kept_results import KeptResults
from placement.read_model.provider import DISABLED
from placement.search.request import CandidatesRequest, RequestGroup
from placement_extras.flavors import features, memory, pinning, spelling
from placement_extras.flavors.flavor import NovaFlavor, TranslationRules, refused
from placement_extras.flavors.groups import GroupBuilder, add_devices
from placement_extras.flavors.guest import FlavorGuest, contradiction
from placement_extras.flavors.pinning import DEDICATED, MIXED, CpuPinning
from placement_extras.flavors.spelling import FlavorWarnings

_GIB: Final = 1 << 30
_MOST: Final = 65536
_PARTS: Final = ("sockets", "cores", "threads")


def check(guest: FlavorGuest) -> None:
    """Make sure of it.

    :raises InvalidRequest: what flavor and image say cannot be.
    """
    _check_sizes(guest.flavor)
    _check_serial_ports(guest)
    _check_cpu_topology(guest)
    guest.agreed_flag("pmu")
    if guest.flavor.vcpus > 1:
        guest.agreed_flag("vif_multiqueue_enabled")
    _check_left_out(guest)


def _check_sizes(flavor: NovaFlavor) -> None:
    image = flavor.image
    if flavor.ram < image.min_ram:
        raise refused(f"the image needs {image.min_ram} MiB of memory, the flavor has {flavor.ram}")
    if flavor.is_volume_backed or not flavor.disk:
        return  # no disk to speak of, or one of any size
    if flavor.disk < image.min_disk or flavor.disk * _GIB < image.size:
        raise refused(
            f"the image has {image.size} bytes and needs a disk of {image.min_disk} GiB; "
            f"that of the flavor has {flavor.disk} GiB"
        )


def _check_serial_ports(guest: FlavorGuest) -> None:
    if not guest.specs.get("hw:serial_port_count", "0"):
        return
    flavor, image = guest.number("serial_port_count")
    if flavor and image and image > flavor:
        raise contradiction("hw", "serial_port_count", str(flavor), str(image))


def _check_cpu_topology(guest: FlavorGuest) -> None:
    """An image wants no more sockets, cores or threads than it may, and may no more than the flavor."""
    for part in _PARTS:
        guest.number(f"cpu_{part}")  # the flavor's are wishes, which need not be met
        most, most_of_image = guest.number(f"cpu_max_{part}")
        if most and most_of_image > most:
            raise contradiction("hw", f"cpu_max_{part}", str(most), str(most_of_image))
        _, wanted = guest.number(f"cpu_{part}")
        if wanted > (most_of_image or most or _MOST):
            raise refused(
                f"hw_cpu_{part} of the image is {wanted}, but it may have {most_of_image or most or _MOST}"
            )


def _check_left_out(guest: FlavorGuest) -> None:
    """What Nova looks up elsewhere: a guest without it would be another one."""
    if guest.specs.get("accel:device_profile"):
        raise refused(
            "accel:device_profile is a profile that Cyborg has; "
            "ask for devices with resources<suffix>: and trait<suffix>:"
        )


_MIB_OF_GIB = 1024


@dataclass(frozen=True, slots=True)
class FlavorTranslation:
    """What is to be asked for.

    ``fallback`` is what will do after all that does for the request: of a guest with CPUs of its own the same
    with shared ones, which Nova asks for as well, for hosts that do not know the difference. ``warnings``
    say in sentences what of the flavor was not understood, and therefore has no part in it.
    """

    request: CandidatesRequest
    fallback: CandidatesRequest | None = None
    warnings: tuple[str, ...] = ()


def translate(flavor: NovaFlavor, rules: TranslationRules) -> FlavorTranslation:
    """What Nova would ask Placement for.

    :raises InvalidRequest: there can be no guest of the flavor that boots its image.
    """
    return _TRANSLATED.get((flavor, rules), lambda: _translate(flavor, rules))


_TRANSLATED: Final = KeptResults[FlavorTranslation](16 << 20)


def _translate(flavor: NovaFlavor, rules: TranslationRules) -> FlavorTranslation:
    guest = FlavorGuest.of(flavor)
    check(guest)
    pinned = pinning.read(guest)
    memory.check_locked(guest)
    memory.check(guest, pinned)
    root = frozenset(features.of_root(guest, rules))
    warnings = FlavorWarnings()
    gathered = _gather(guest, pinned, rules, warnings)
    spelling.check(flavor, warnings)
    fallback = None
    if pinned.policy == DEDICATED and not rules.disable_fallback_pcpu_query:
        fallback = _request(_gather(guest, None, rules, FlavorWarnings()), root)
    return FlavorTranslation(_request(gathered, root), fallback, warnings.sentences())


def _gather(
    guest: FlavorGuest, pinned: CpuPinning | None, rules: TranslationRules, warnings: FlavorWarnings
) -> GroupBuilder:
    """The groups; without the translation of CPU policies if no pinning is given."""
    groups = GroupBuilder(rules.own_classes, warnings)
    groups.add_specs(guest.specs)
    if pinned is not None:
        _add_cpus(groups, guest.flavor.vcpus, pinned)
    add_devices(groups, guest, rules)
    if not groups.has("VCPU") and not groups.has("PCPU"):
        groups.set_amount("VCPU", guest.flavor.vcpus)
    if not groups.has("MEMORY_MB"):
        groups.set_amount("MEMORY_MB", guest.flavor.ram)
    if not groups.has("DISK_GB"):
        groups.set_amount("DISK_GB", _disk(guest.flavor))
    encryption = memory.encryption(guest)
    if encryption is not None:
        groups.set_amount("MEM_ENCRYPTION_CONTEXT", 1)
        groups.require(encryption.trait)
    labels = Counter(
        os_resource_classes.normalize_name(f"PMEM_NAMESPACE_{each}") for each in memory.persistent(guest)
    )
    for name, number in labels.items():
        groups.set_amount(name, number)
    groups.require(*features.of_providers(guest))
    return groups


def _add_cpus(groups: GroupBuilder, vcpus: int, pinned: CpuPinning) -> None:
    if pinned.policy in (DEDICATED, MIXED):
        dedicated = pinned.dedicated.bit_count()
        if pinned.policy == MIXED:
            groups.set_amount("VCPU", vcpus - dedicated)
        groups.set_amount("PCPU", dedicated + pinned.emulator_is_isolated)
    if pinned.threads == pinning.ISOLATE:
        groups.forbid(pinning.THREADS)
    elif pinned.threads == pinning.REQUIRE:
        groups.require(pinning.THREADS)


def _disk(flavor: NovaFlavor) -> int:
    """In GiB: also what is neither kept nor of the image, but no root disk that is a volume."""
    root = 0 if flavor.is_volume_backed else flavor.disk
    return root + flavor.ephemeral - -flavor.swap // _MIB_OF_GIB


def _request(gathered: GroupBuilder, root: frozenset[str]) -> CandidatesRequest:
    groups = gathered.made()
    policy = gathered.policy()
    _check_groups(groups, policy)
    return CandidatesRequest(
        groups=groups,
        group_policy=policy,
        root_required=root,
        root_forbidden=frozenset((DISABLED,)),
    )


def _check_groups(groups: tuple[RequestGroup, ...], policy: str | None) -> None:
    """Refuse what Nova would send and Placement would not take."""
    for group in groups:
        which = f"the group {group.suffix}" if group.suffix else "the group without a suffix"
        if not group.resources:
            raise refused(f"{which} has traits, but no resources")
        for traits in group.required:
            if traits <= group.forbidden:
                raise refused(f"{which} requires and forbids the trait {', '.join(traits)}")
    if not groups:
        raise refused("it asks for nothing")
    if policy is None and sum(group.suffix != "" for group in groups) > 1:
        raise refused(
            "its extra specs have more than one group with a suffix, so that they need group_policy, "
            "none or isolate"
        )
