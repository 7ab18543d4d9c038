"""Flavors and images that each show one thing, with Nova's recorded translations.

``python -m tests.nova.handpicked`` records them again, together with those of Nova's unit tests and random
ones, for the tests without Nova: :mod:`tests.placement_extras.flavors.test_translation`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.reference import install_environment
from tests.nova.flavors import Case, cases
from tests.nova.judging import REQUIREMENTS, of_unit_tests, verdicts
from tests.placement_extras.flavors.answers import AT_RANDOM, OF_UNIT_TESTS, RECORDED

_COUNT: Final = 150
_SEED: Final = 2026

_PINNED: Final = {"hw:cpu_policy": "dedicated"}
_MIXED: Final = {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-1"}
_UEFI: Final = {"hw_firmware_type": "uefi"}
_SEALED: Final = {**_UEFI, "hw_firmware_stateless": "true"}

FLAVORS: Final[dict[str, tuple[dict[str, str], dict[str, str]]]] = {
    "nothing beside sizes": ({}, {}),
    "amounts beside those of the flavor": ({"resources:VGPU": "1", "resources:CUSTOM_FPGA": "2"}, {}),
    "amounts instead of those of the flavor": ({"resources:MEMORY_MB": "64", "resources:DISK_GB": "1"}, {}),
    "nothing of a class": ({"resources:DISK_GB": "0", "resources:MEMORY_MB": "0"}, {}),
    "nothing at all": ({"resources:DISK_GB": "0", "resources:MEMORY_MB": "0", "resources:VCPU": "0"}, {}),
    "an amount that is none": ({"resources:VGPU": "many", "resources:CUSTOM_A": "-1"}, {}),
    "a class that is none": ({"resources:vgpu": "1", "resources:LLC": "4"}, {}),
    "one group with a suffix": ({"resources_GPU:VGPU": "1", "trait_GPU:CUSTOM_GOLD": "required"}, {}),
    "two groups with suffixes": ({"resources1:VGPU": "1", "resources2:VGPU": "1"}, {}),
    "two groups with a policy": (
        {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "none"},
        {},
    ),
    "a policy that is none": ({"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "any"}, {}),
    "a group that asks for nothing": ({"resources1:VGPU": "1", "resources2:VGPU": "0"}, {}),
    "a group of traits alone": ({"trait1:CUSTOM_GOLD": "required"}, {}),
    "memory of a group with a suffix": ({"resources1:MEMORY_MB": "64"}, {}),
    "CPUs of a group with a suffix": ({"resources_A:VCPU": "2"}, {}),
    "a trait": ({"trait:CUSTOM_GOLD": "required", "trait:CUSTOM_RUST": "forbidden"}, {}),
    "a trait that is wanted and not": ({"trait:CUSTOM_GOLD": "forbidden"}, {"trait:CUSTOM_GOLD": "required"}),
    "a trait of neither kind": ({"trait:CUSTOM_GOLD": "preferred"}, {}),
    "traits of the image": ({}, {"trait:CUSTOM_GOLD": "required", "trait:CUSTOM_RUST": "forbidden"}),
    "dedicated": (_PINNED, {}),
    "dedicated by the image": ({}, {"hw_cpu_policy": "dedicated"}),
    "dedicated, the image shared": (_PINNED, {"hw_cpu_policy": "shared"}),
    "shared, the image dedicated": ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "dedicated"}),
    "shared, the image mixed": ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "mixed"}),
    "mixed, the image dedicated": (_MIXED, {"hw_cpu_policy": "dedicated"}),
    "mixed, the image shared": (_MIXED, {"hw_cpu_policy": "shared"}),
    "no such policy": ({"hw:cpu_policy": "exclusive"}, {}),
    "no such policy of an image": ({}, {"hw_cpu_policy": "exclusive"}),
    "mixed": (_MIXED, {}),
    "mixed but for some": ({**_MIXED, "hw:cpu_dedicated_mask": "^0"}, {}),
    "mixed without a mask": ({"hw:cpu_policy": "mixed"}, {}),
    "mixed, all dedicated": ({**_MIXED, "hw:cpu_dedicated_mask": "0-3"}, {}),
    "mixed, none dedicated": ({**_MIXED, "hw:cpu_dedicated_mask": "0,^0"}, {}),
    "mixed, beyond the CPUs": ({**_MIXED, "hw:cpu_dedicated_mask": "2-9"}, {}),
    "mixed, no mask": ({**_MIXED, "hw:cpu_dedicated_mask": "two"}, {}),
    "a mask without mixed": ({**_PINNED, "hw:cpu_dedicated_mask": "0-1"}, {}),
    "mixed by realtime": (
        {"hw:cpu_policy": "mixed", "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0"},
        {},
    ),
    "mixed by both": ({**_MIXED, "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0"}, {}),
    "mixed, emulator isolated": ({**_MIXED, "hw:emulator_threads_policy": "isolate"}, {}),
    "realtime": ({**_PINNED, "hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0-1"}, {}),
    "realtime by the image's mask": ({**_PINNED, "hw:cpu_realtime": "1"}, {"hw_cpu_realtime_mask": "1-3"}),
    "realtime without a mask": ({**_PINNED, "hw:cpu_realtime": "yes"}, {}),
    "realtime, emulator isolated": (
        {**_PINNED, "hw:cpu_realtime": "yes", "hw:emulator_threads_policy": "isolate"},
        {},
    ),
    "realtime and shared": ({"hw:cpu_realtime": "yes", "hw:cpu_realtime_mask": "^0"}, {}),
    "threads isolated": ({**_PINNED, "hw:cpu_thread_policy": "isolate"}, {}),
    "threads required": ({**_PINNED, "hw:cpu_thread_policy": "require"}, {}),
    "threads preferred": ({**_PINNED, "hw:cpu_thread_policy": "prefer"}, {}),
    "threads preferred, the image isolates": (
        {**_PINNED, "hw:cpu_thread_policy": "prefer"},
        {"hw_cpu_thread_policy": "isolate"},
    ),
    "threads isolated, the image requires": (
        {**_PINNED, "hw:cpu_thread_policy": "isolate"},
        {"hw_cpu_thread_policy": "require"},
    ),
    "threads of shared CPUs": ({"hw:cpu_thread_policy": "isolate"}, {}),
    "hyperthreading of shared CPUs": ({"trait:HW_CPU_HYPERTHREADING": "required"}, {}),
    "hyperthreading of dedicated CPUs": ({**_PINNED, "trait:HW_CPU_HYPERTHREADING": "forbidden"}, {}),
    "threads said twice": (
        {**_PINNED, "hw:cpu_thread_policy": "isolate", "trait:HW_CPU_HYPERTHREADING": "forbidden"},
        {},
    ),
    "emulator isolated": ({**_PINNED, "hw:emulator_threads_policy": "isolate"}, {}),
    "emulator shares": ({**_PINNED, "hw:emulator_threads_policy": "share"}, {}),
    "emulator isolated from shared CPUs": ({"hw:emulator_threads_policy": "isolate"}, {}),
    "no such emulator policy": ({**_PINNED, "hw:emulator_threads_policy": "prefer"}, {}),
    "as many PCPU": ({"resources:PCPU": "4"}, {}),
    "fewer PCPU": ({"resources:PCPU": "3"}, {}),
    "as many PCPU, emulator isolated": ({"resources:PCPU": "4", "hw:emulator_threads_policy": "isolate"}, {}),
    "one PCPU more, emulator isolated": (
        {"resources:PCPU": "5", "hw:emulator_threads_policy": "isolate"},
        {},
    ),
    "PCPU of numbered groups": ({"resources1:PCPU": "2", "resources2:PCPU": "2", "group_policy": "none"}, {}),
    "PCPU and VCPU": ({"resources:PCPU": "4", "resources:VCPU": "4"}, {}),
    "VCPU and a policy": ({**_PINNED, "resources:VCPU": "4"}, {}),
    "other VCPU": ({"resources:VCPU": "1"}, {}),
    "two nodes": ({"hw:numa_nodes": "2"}, {}),
    "three nodes of four CPUs": ({"hw:numa_nodes": "3"}, {}),
    "no node": ({"hw:numa_nodes": "0"}, {}),
    "nodes that are no number": ({"hw:numa_nodes": "two"}, {}),
    "nodes said twice": ({"hw:numa_nodes": "2"}, {"hw_numa_nodes": "2"}),
    "nodes by the image": ({}, {"hw_numa_nodes": "2"}),
    "parts of nodes": (
        {"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.1": "1-3"}
        | {"hw:numa_mem.0": "48", "hw:numa_mem.1": "2000"},
        {},
    ),
    "parts without memory": ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.1": "1-3"}, {}),
    "parts of other nodes": ({"hw:numa_nodes": "1", "hw:numa_cpus.1": "0-3", "hw:numa_mem.1": "2048"}, {}),
    "parts that leave a CPU": ({"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-2", "hw:numa_mem.0": "2048"}, {}),
    "parts that have one CPU too many": (
        {"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-4", "hw:numa_mem.0": "2048"},
        {},
    ),
    "parts that have too little memory": (
        {"hw:numa_nodes": "1", "hw:numa_cpus.0": "0-3", "hw:numa_mem.0": "2047"},
        {},
    ),
    "parts where none are wanted": ({"hw:numa_cpus.0": "0-9"}, {"hw_numa_mem.0": "1"}),
    "large pages": ({"hw:mem_page_size": "large"}, {}),
    "pages of 2 MB": ({"hw:mem_page_size": "2MB"}, {"hw_mem_page_size": "2MB"}),
    "large pages, the image 1 GB": ({"hw:mem_page_size": "large"}, {"hw_mem_page_size": "1GB"}),
    "pages by the image": ({}, {"hw_mem_page_size": "large"}),
    "no such pages": ({"hw:mem_page_size": "huge"}, {}),
    "locked memory": ({"hw:locked_memory": "true", "hw:mem_page_size": "large"}, {}),
    "locked memory without pages": ({"hw:locked_memory": "true"}, {}),
    "locked memory, the image not": (
        {"hw:locked_memory": "true", "hw:mem_page_size": "large"},
        {"hw_locked_memory": "no"},
    ),
    "encrypted memory": ({"hw:mem_encryption": "true"}, _UEFI),
    "encrypted memory without UEFI": ({"hw:mem_encryption": "true"}, {}),
    "encrypted memory of a PC": ({"hw:mem_encryption": "true"}, {**_UEFI, "hw_machine_type": "pc-i440fx"}),
    "encrypted memory of a q35": ({}, {**_UEFI, "hw_mem_encryption": "yes", "hw_machine_type": "pc-q35-8.2"}),
    "encrypted memory, the image not": ({"hw:mem_encryption": "true"}, {**_UEFI, "hw_mem_encryption": "no"}),
    "encrypted by SEV-ES": ({"hw:mem_encryption": "1", "hw:mem_encryption_model": "amd-sev-es"}, _UEFI),
    "encrypted by SEV-SNP": ({"hw:mem_encryption": "1", "hw:mem_encryption_model": "amd-sev-snp"}, _SEALED),
    "encrypted by SEV-SNP, firmware keeps": (
        {"hw:mem_encryption": "1", "hw:mem_encryption_model": "amd-sev-snp"},
        _UEFI,
    ),
    "encrypted by TDX": (
        {"hw:mem_encryption": "1", "hw:mem_encryption_model": "intel-tdx"},
        {**_SEALED, "hw_video_model": "none"},
    ),
    "encrypted by TDX, with a screen": (
        {"hw:mem_encryption": "1", "hw:mem_encryption_model": "intel-tdx"},
        _SEALED,
    ),
    "encrypted by nobody": ({"hw:mem_encryption": "1", "hw:mem_encryption_model": "rot13"}, _UEFI),
    "persistent memory": ({"hw:pmem": "2GB, 2GB,large-one"}, {}),
    "a TPM": ({"hw:tpm_version": "1.2"}, {}),
    "a TPM of the image": ({}, {"hw_tpm_version": "2.0", "hw_tpm_model": "tpm-crb"}),
    "a TPM that is not": ({"hw:tpm_version": "1.2", "hw:tpm_model": "tpm-crb"}, {}),
    "a TPM of two versions": ({"hw:tpm_version": "1.2"}, {"hw_tpm_version": "2.0"}),
    "a TPM with a host's secrets": ({"hw:tpm_version": "2.0", "hw:tpm_secret_security": "host"}, {}),
    "a TPM with nobody's secrets": ({"hw:tpm_version": "2.0", "hw:tpm_secret_security": "nobody"}, {}),
    "secure boot": ({"os:secure_boot": "required"}, {}),
    "secure boot, the image optional": ({"os:secure_boot": "required"}, {"os_secure_boot": "optional"}),
    "stateless firmware": ({}, _SEALED),
    "stateless BIOS": ({}, {"hw_firmware_stateless": "true"}),
    "addresses as the host has them": ({"hw:maxphysaddr_mode": "passthrough"}, {}),
    "addresses of another width": ({"hw:maxphysaddr_mode": "emulate", "hw:maxphysaddr_bits": "42"}, {}),
    "devices of the same socket": ({"hw:pci_numa_affinity_policy": "socket"}, {}),
    "devices of another policy": (
        {"hw:pci_numa_affinity_policy": "socket"},
        {"hw_pci_numa_affinity_policy": "legacy"},
    ),
    "encrypted disks": ({"hw:ephemeral_encryption": "true", "hw:ephemeral_encryption_format": "luks"}, {}),
    "encrypted disks of the image": ({}, {"hw_ephemeral_encryption": "true"}),
    "packed rings": ({"hw:virtio_packed_ring": "true"}, {}),
    "packed rings, the image not": ({"hw:virtio_packed_ring": "true"}, {"hw_virtio_packed_ring": "false"}),
    "sound": ({"hw:sound_model": "virtio"}, {}),
    "other sound": ({"hw:sound_model": "ich9"}, {}),
    "several queues, the image not": (
        {"hw:vif_multiqueue_enabled": "true"},
        {"hw_vif_multiqueue_enabled": "no"},
    ),
    "a watchdog": ({"hw:watchdog_action": "reset"}, {"hw_watchdog_action": "pause"}),
    "no such watchdog": ({}, {"hw_watchdog_action": "bark"}),
    "more ports than allowed": ({"hw:serial_port_count": "1"}, {"hw_serial_port_count": "2"}),
    "more cores than allowed": ({"hw:cpu_max_cores": "2"}, {"hw_cpu_cores": "4"}),
    "cores without a number": ({"hw:cpu_cores": "some"}, {}),
    "a PCI alias": ({"pci_passthrough:alias": "gpu:1"}, {}),
    "a device profile": ({"accel:device_profile": "gpu"}, {}),
    "devices": (
        {},
        {"hw_disk_bus": "virtio", "hw_vif_model": "e1000", "hw_video_model": "qxl", "architecture": "AMD64"},
    ),
    "a device without a trait": (
        {},
        {"hw_disk_bus": "virtio", "hw_vif_model": "spapr-vlan", "hw_cdrom_bus": "xen"},
    ),
    "a bus that is none": ({}, {"hw_disk_bus": "floppy"}),
    "a version of the hypervisor": ({}, {"img_hv_requested_version": ">=6.0, < 6.2,!=6.1-rc1"}),
    "a version of the hypervisor, formerly": ({}, {"hypervisor_version_requires": "== 6.0.post1"}),
    "a version without a comparison": ({}, {"img_hv_requested_version": "6.0"}),
    "a version that is none": ({}, {"hypervisor_version_requires": ">=new"}),
    "comparisons that end with a comma": ({}, {"img_hv_requested_version": ">=6.0,"}),
    "VMware's words": ({}, {"vmware_adaptertype": "lsiLogicsas", "hw_scsi_model": "virtio-scsi"}),
}
"""Extra specs and image properties by subject, for flavors of 4 CPUs, 2048 MiB and 10 GB."""

_OFF: Final = {
    "query_placement_for_image_type_support": False,
    "image_metadata_prefilter": False,
    "require_owner_nova": False,
}
_ON: Final = dict.fromkeys(_OFF, True)
_ALIASES: Final = {
    "pci_alias": [
        {"name": "gpu", "resource_class": "a100", "traits": "HW_GPU_API_VULKAN,gold"},
        {"name": "nic", "vendor_id": "8086", "product_id": "154d"},
    ]
}
DEVICES: Final[dict[str, dict[str, str]]] = {
    "one PCI device": {"pci_passthrough:alias": "nic:1"},
    "three PCI devices": {"pci_passthrough:alias": "gpu:2, nic:1"},
    "no such PCI device": {"pci_passthrough:alias": "gpu:1,tpu:1"},
    "a PCI device without a number": {"pci_passthrough:alias": "gpu"},
    "PCI devices beside a group": {"pci_passthrough:alias": "gpu:1", "resources_A:VGPU": "1"},
    "PCI devices apart from each other": {"pci_passthrough:alias": "gpu:2", "group_policy": "isolate"},
    "PCI devices beside groups without a policy": {
        "pci_passthrough:alias": "gpu:1",
        "resources_A:VGPU": "1",
        "resources_B:VGPU": "0",
    },
}
"""Extra specs by subject, for a configuration that knows the aliases."""


def handpicked() -> Iterator[tuple[str, Case]]:
    """Return all cases by subject."""
    for about, (specs, properties) in FLAVORS.items():
        yield about, _case({}, specs, {"properties": properties})
    for about, specs in DEVICES.items():
        yield about, _case({}, specs, {}, {**_OFF, **_ALIASES})
    yield "PCI devices, as Nova filters", _case({}, DEVICES["three PCI devices"], {}, {**_ON, **_ALIASES})
    for about in ("nothing beside sizes", "devices", "a device without a trait"):
        yield f"{about}, as Nova filters", _case({}, {}, {"properties": FLAVORS[about][1]}, _ON)
    yield "an image of no type, as Nova filters", _case({}, {}, {"disk_format": "tar"}, _ON)
    yield "a volume", _case({"is_volume_backed": True}, {}, {"min_disk": 99})
    yield "a volume, as Nova filters", _case({"is_volume_backed": True}, {}, {}, _ON)
    yield "swap is rounded up", _case({"swap": 1025, "ephemeral": 5}, {}, {})
    yield "no disk", _case({"disk": 0}, {}, {"size": 1 << 40})
    yield "no disk beside swap", _case({"disk": 0, "swap": 512}, {}, {})
    yield "no disk of its own, from a volume", _case({"disk": 0, "is_volume_backed": True}, {}, {})
    yield "no CPU", _case({"vcpus": 1, "ram": 0}, {"hw:vif_multiqueue_enabled": "1"}, {})
    yield "an image that needs more memory", _case({}, {}, {"min_ram": 4096})
    yield "an image that needs more disk", _case({}, {}, {"min_disk": 11})
    yield "an image that is larger", _case({}, {}, {"size": 11 << 30})


def _case(
    sizes: dict[str, Any], specs: dict[str, str], image: dict[str, Any], rules: dict[str, Any] = _OFF
) -> Case:
    flavor = {"vcpus": 4, "ram": 2048, "disk": 10, **sizes, "extra_specs": specs}
    return {"flavor": {**flavor, "image": {"disk_format": "qcow2", **image}}, "rules": rules}


def main() -> None:
    """Record Nova's translations."""
    programs = install_environment("nova-functional-34.0.0", REQUIREMENTS)
    named = [
        *handpicked(),
        *((OF_UNIT_TESTS, case) for case in of_unit_tests(programs)),
        *((AT_RANDOM, case) for case in cases(_COUNT, _SEED)),
    ]
    said = verdicts(programs, [case for _, case in named])
    lines = [
        json.dumps({"about": about, **case, "nova": verdict})
        for (about, case), verdict in zip(named, said, strict=True)
    ]
    Path(RECORDED).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
