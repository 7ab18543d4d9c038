"""Which properties of images Nova knows, of which type, and what they were called formerly.

Those that are of no consequence here are there, too: a value that one of them cannot have is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ChoiceProperty:
    """A property with one of some values; ``others`` are spelt in another way, ``exact`` ones are not."""

    values: frozenset[str]
    others: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True

    def read(self, text: str) -> str:
        """The value that the text means.

        :raises ValueError: it is none of them.
        """
        value = text if self.exact else text.lower()
        value = self.others.get(value, value)
        if value not in self.values:
            raise ValueError(text)
        return value


def _one_of(values: str) -> ChoiceProperty:
    return ChoiceProperty(frozenset(values.split()))


def _any_case(values: str, **others: str) -> ChoiceProperty:
    return ChoiceProperty(frozenset(values.split()), others, exact=False)


_ARCHITECTURE: Final = _any_case(
    "alpha armv6 armv7l armv7b aarch64 cris i686 ia64 lm32 m68k microblaze microblazeel mips mipsel mips64 "
    "mips64el openrisc parisc parisc64 ppc ppcle ppc64 ppc64le ppcemb s390 s390x sh4 sh4eb sparc sparc64 "
    "unicore32 x86_64 xtensa xtensaeb",
    **dict.fromkeys(("i386", "i486", "i586", "x86_32", "x86_32p"), "i686"),
    amd64="x86_64",
)
_DISK_BUS: Final = _one_of("fdc ide sata scsi usb virtio xen lxc uml")

CHOICES: Final[Mapping[str, ChoiceProperty]] = {
    "hw_architecture": _ARCHITECTURE,
    "hw_cdrom_bus": _DISK_BUS,
    "hw_cpu_policy": _one_of("dedicated shared mixed"),
    "hw_cpu_thread_policy": _one_of("prefer isolate require"),
    "hw_disk_bus": _DISK_BUS,
    "hw_emulation_architecture": _ARCHITECTURE,
    "hw_ephemeral_encryption_format": _one_of("plain luks luksv2"),
    "hw_firmware_type": _one_of("uefi bios"),
    "hw_floppy_bus": _DISK_BUS,
    "hw_input_bus": _one_of("usb virtio"),
    "hw_maxphysaddr_mode": _one_of("passthrough emulate"),
    "hw_mem_encryption_model": _one_of("amd-sev amd-sev-es amd-sev-snp intel-tdx"),
    "hw_pci_numa_affinity_policy": _one_of("required legacy preferred socket"),
    "hw_pointer_model": _one_of("usbtablet"),
    "hw_rescue_bus": _DISK_BUS,
    "hw_rescue_device": _one_of("cdrom disk floppy fs lun"),
    "hw_rng_model": _one_of("virtio"),
    "hw_scsi_model": _any_case(
        "buslogic ibmvscsi lsilogic lsisas1068 lsisas1078 virtio-scsi vmpvscsi",
        lsilogicsas="lsisas1068",
        paravirtual="vmpvscsi",
    ),
    "hw_sound_model": _one_of("sb16 es1370 pcspk ac97 ich6 ich9 usb virtio"),
    "hw_tpm_model": _one_of("tpm-tis tpm-crb"),
    "hw_tpm_version": _one_of("1.2 2.0"),
    "hw_usb_model": _one_of("none nec-xhci qemu-xhci"),
    "hw_video_model": _one_of("cirrus qxl vga vmvga xen virtio gop none bochs"),
    "hw_vif_model": _one_of(
        "virtio ne2k_pci pcnet rtl8139 e1000 e1000e netfront spapr-vlan lan9118 sriov vmxnet vmxnet3 igb"
    ),
    "hw_viommu_model": _one_of("intel smmuv3 virtio auto"),
    "hw_vm_mode": _any_case("hvm xen uml exe", pv="xen", hv="hvm", baremetal="hvm"),
    "hw_watchdog_action": _one_of("none pause poweroff reset disabled"),
    "img_config_drive": _one_of("optional mandatory"),
    "img_hv_type": _any_case(
        "baremetal bhyve docker fake hyperv ironic kqemu kvm lxc lxd openvz parallels phyp qemu test uml "
        "vbox vz vmware xen zvm prsm",
        xapi="xen",
    ),
    "img_signature_hash_method": _one_of("SHA-224 SHA-256 SHA-384 SHA-512"),
    "img_signature_key_type": _one_of(
        "DSA ECC_SECP384R1 ECC_SECP521R1 ECC_SECT409K1 ECC_SECT409R1 ECC_SECT571K1 ECC_SECT571R1 RSA-PSS"
    ),
    "os_secure_boot": _one_of("required disabled optional"),
    "os_type": _any_case("linux windows"),
}

FLAGS: Final = frozenset(
    (
        *("hw_ephemeral_encryption", "hw_firmware_stateless", "hw_locked_memory", "hw_mem_encryption"),
        *("hw_pmu", "hw_vif_multiqueue_enabled", "hw_virtio_packed_ring"),
    )
)
"""Any text is a value of one; those without consequence are left out."""

NUMBERS: Final = frozenset(
    (
        *("hw_cpu_cores", "hw_cpu_max_cores", "hw_cpu_max_sockets", "hw_cpu_max_threads", "hw_cpu_sockets"),
        *("hw_cpu_threads", "hw_device_id", "hw_maxphysaddr_bits", "hw_numa_nodes"),
        *("hw_redirected_usb_ports", "hw_serial_port_count", "hw_video_ram"),
        *("img_compression_level", "img_version"),
    )
)

COMPARED: Final = frozenset(("img_hv_requested_version",))
"""Comparisons with versions, all of which have to be true: Nova makes them with hosts that it was offered."""

FREE: Final = frozenset(("hw_cpu_realtime_mask", "hw_machine_type", "hw_mem_page_size"))
"""Texts of any kind, without those that have no consequence."""

FORMERLY: Final[Mapping[str, str]] = {
    "architecture": "hw_architecture",
    "hypervisor_type": "img_hv_type",
    "hypervisor_version_requires": "img_hv_requested_version",
    "vm_mode": "hw_vm_mode",
    "vmware_image_version": "img_version",
    "xenapi_device_id": "hw_device_id",
    "xenapi_image_compression_level": "img_compression_level",
}
"""Former names of properties whose values are checked."""

_COMPARISON: Final = re.compile(r"\s*(?:<=|>=|<|>|!=|==)\s*(\S+)\s*")
_VERSION: Final = re.compile(
    r"v?(\d+!)?\d+(\.\d+)*"
    r"([-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?\d*)?"
    r"(-\d+|[-_.]?(post|rev|r)[-_.]?\d*)?"
    r"([-_.]?dev[-_.]?\d*)?"
    r"(\+[a-z0-9]+([-_.][a-z0-9]+)*)?",
    re.ASCII | re.IGNORECASE,
)
"""A version as PEP 440 has it."""


def check_comparisons(text: str) -> None:
    """Refuse what is no list of comparisons with versions, such as ``>=6.0,<6.2``.

    :raises ValueError: it is none.
    """
    for each in text.split(","):
        found = _COMPARISON.fullmatch(each)
        if found is None or _VERSION.fullmatch(found[1]) is None:
            raise ValueError(text)
