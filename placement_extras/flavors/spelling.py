"""Known names of extra specs and image properties, and warnings about unknown names.

Nova ignores unknown names, so a misspelt extra spec has no effect. The same is true of the agent, which reads
the namespace ``compute_agent``. The namespace of an extra spec is the text before its colon. A namespace that
neither Nova 34.0.0 nor the agent knows probably belongs to another program. So such a namespace causes a
warning only if it looks like a misspelt known namespace.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from placement.schemas.base import similar_name
from placement_extras.flavors.flavor import NovaFlavor
from placement_extras.flavors.guest import CHOICES, COMPARED, FLAGS, FREE, NUMBERS

MAX_WARNINGS: Final = 16
"""Maximum number of warnings about a flavor that have a text. Further warnings are only counted."""

_AGENT: Final = "compute_agent"
_NAMES: Final[Mapping[str, str]] = {
    "accel": "device_profile",
    "aggregate_instance_extra_specs": "",
    "capabilities": (
        "aggregates cell_uuid cpu_allocation_ratio cpu_info current_workload disk_allocation_ratio "
        "disk_available_least disk_mb_used failed_builds free_disk_gb free_disk_mb free_ram_mb host host_ip "
        "hypervisor_hostname hypervisor_type hypervisor_version id instances limits local_gb local_gb_used "
        "mapped memory_mb memory_mb_used metrics nodename num_instances num_io_ops numa_topology "
        "pci_device_pools pci_stats ram_allocation_ratio running_vms service_id stats supported_hv_specs "
        "supported_instances total_usable_disk_gb total_usable_ram_mb updated uuid vcpus vcpus_total "
        "vcpus_used"
    ),
    _AGENT: (
        "blockio_class cpu_class emulator_policy isolation memory_type preserve priority qos_class resctrl "
        "spread thread_policy"
    ),
    "hw": (
        "boot_menu cpu_cores cpu_dedicated_mask cpu_max_cores cpu_max_sockets cpu_max_threads cpu_policy "
        "cpu_realtime cpu_realtime_mask cpu_sockets cpu_thread_policy cpu_threads emulator_threads_policy "
        "ephemeral_encryption ephemeral_encryption_format hide_hypervisor_id locked_memory maxphysaddr_bits "
        "maxphysaddr_mode mem_encryption mem_encryption_model mem_page_size numa_nodes "
        "pci_numa_affinity_policy pmem pmu redirected_usb_ports serial_port_count sound_model tpm_model "
        "tpm_secret_security tpm_version usb_model vif_multiqueue_enabled viommu_model virtio_packed_ring "
        "watchdog_action"
    ),
    "hw_rng": "allowed rate_bytes rate_period",
    "hw_video": "ram_max_mb",
    "os": "secure_boot",
    "pci_passthrough": "alias",
    "quota": (
        "cpu_limit cpu_period cpu_quota cpu_reservation cpu_shares cpu_shares_level cpu_shares_share "
        "disk_io_limit disk_io_reservation disk_io_shares_level disk_io_shares_share disk_read_bytes_sec "
        "disk_read_iops_sec disk_total_bytes_sec disk_total_iops_sec disk_write_bytes_sec "
        "disk_write_iops_sec memory_limit memory_reservation memory_shares_level memory_shares_share "
        "vif_inbound_average vif_inbound_burst vif_inbound_peak vif_limit vif_outbound_average "
        "vif_outbound_burst vif_outbound_peak vif_reservation vif_shares_level vif_shares_share"
    ),
    "vmware": "hw_version storage_policy",
}
"""Known names of extra specs, by namespace. Nova's API does not know the two names with ``maxphysaddr``, but
Nova's scheduler uses them. The agent's names are the settings of guests.
"""
SPEC_OF_GROUP: Final = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)", re.DOTALL)
"""Pattern of an extra spec with an amount or a trait. Its groups are the kind, the suffix and the name."""
_NAMESPACES: Final = ("resources", "trait", *_NAMES)
_NUMBER: Final = re.compile(r"_?\d+$")
_MISSPELT_RATIO: Final = 0.81
"""An unknown namespace counts as misspelt if its similarity (0 to 1) to a known namespace is at least this
value.
"""
_POLICY: Final = "group_policy"
_SPECS: Final = frozenset(
    (_POLICY, *(f"{namespace}:{name}" for namespace, names in _NAMES.items() for name in names.split()))
)
"""The full names of known extra specs."""
_WITH_PARTS: Final = re.compile(
    r"hw:numa_(cpus|mem)\.\d+|aggregate_instance_extra_specs:.+|capabilities:(cpu_info|instances|limits"
    r"|metrics|nodename|numa_topology|pci_device_pools|pci_stats|stats|supported_hv_specs"
    r"|supported_instances)(:\w+)+",
    re.DOTALL,
)
"""Known extra specs with variable parts, such as the number of a NUMA node."""
_PROPERTIES: Final = frozenset(
    name for name in (*CHOICES, *FLAGS, *NUMBERS, *COMPARED, *FREE) if name.startswith("hw_")
) | frozenset(
    (
        *("hw_auto_disk_config", "hw_boot_menu", "hw_disk_type", "hw_ephemeral_encryption_secret_uuid"),
        *("hw_ipxe_boot", "hw_qemu_guest_agent", "hw_time_hpet"),
    )
)
"""Known properties of images that begin with ``hw_``."""
_PROPERTY_WITH_NODE: Final = re.compile(r"hw_numa_(cpus|mem)\.\d+")


class FlavorWarnings:
    """Collects warnings about parts of a flavor that the translation ignores."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._more = 0

    def add(
        self, sentence: str, name: str = "", known: Collection[str] = (), min_ratio: float = 0.75
    ) -> None:
        """Add a warning.

        :param name: the unknown name. The warning suggests the most similar name in ``known``.
        :param min_ratio: the least similarity (0 to 1) of a name that the warning suggests.
        """
        # the number of warnings is limited, because a flavor can have hundreds of unknown names
        if len(self._sentences) == MAX_WARNINGS:
            self._more += 1
            return
        self._sentences.append(sentence + similar_name(name, known, min_ratio))

    def all_sentences(self) -> tuple[str, ...]:
        """Return the warnings, and a last sentence with the number of further warnings."""
        return (*self._sentences, *([f"{self._more} more are not understood"] if self._more else []))


def warn_unknown_names(flavor: NovaFlavor, warnings: FlavorWarnings) -> None:
    """Warn of unknown names of extra specs in known namespaces, and of unknown properties of images."""
    _check_specs((name for name, _ in flavor.extra_specs), warnings)
    for name, value in flavor.image.properties:
        if name.startswith("trait:"):
            if value != "required":
                # the value is shortened, because values can have tens of thousands of characters
                warnings.add(f"the image property {name} cannot be {value[:80]!r}, only required")
        elif name.startswith("hw:") or (
            name.startswith("hw_") and name not in _PROPERTIES and not _PROPERTY_WITH_NODE.fullmatch(name)
        ):
            meant = name.replace(":", "_", 1)
            warnings.add(f"{name} is not an image property that Nova knows", meant, sorted(_PROPERTIES))


def _check_specs(names: Iterable[str], warnings: FlavorWarnings) -> None:
    for name in names:
        meant = _meant_spec(name)
        if meant is not None:
            known = [meant] if SPEC_OF_GROUP.fullmatch(meant) else sorted(_SPECS)
            if meant.startswith(f"{_AGENT}:"):
                # All names of this long namespace are similar.
                warnings.add(f"{name} is not an extra spec that the agent knows", meant, known, 0.9)
            else:
                warnings.add(f"{name} is not an extra spec that Nova knows", meant, known)


def _meant_spec(name: str) -> str | None:
    """Return the name that an unknown extra spec probably means.

    Return None for a known name, and for a name of another program.
    """
    namespace, colon, rest = name.partition(":")
    if not colon:
        # a name without a colon is perhaps that of an image property; the extra spec has a colon instead of
        # "_"
        if name in _PROPERTIES:
            return name.replace("_", ":", 1)
        is_near = name != _POLICY and get_close_matches(name.lower(), [_POLICY], 1, _MISSPELT_RATIO)
        return _POLICY if is_near else None
    # names of this form are never unknown, because a group can have any suffix
    if SPEC_OF_GROUP.fullmatch(name):
        return None
    if namespace in _NAMES:
        return None if name in _SPECS or _WITH_PARTS.fullmatch(name) else name
    # the namespace is compared without its number, because the number in "resources1" is the suffix of a
    # group
    near = get_close_matches(_NUMBER.sub("", namespace.lower()), _NAMESPACES, 1, _MISSPELT_RATIO)
    return f"{near[0]}:{rest}" if near else None
