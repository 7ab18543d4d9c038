"""Combines a flavor and an image into a guest, and checks the properties of the image.

A feature can have a value in the flavor and a value in the image.

Nova refuses an image if a known property has a value of the wrong type. So this module lists all properties
with checked values and their former names, even if a property does not affect a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from placement.exceptions import InvalidRequest
from placement_extras.flavors.flavor import NovaFlavor, Pairs, parse_cpus, refusal_error


@dataclass(frozen=True, slots=True)
class ChoiceProperty:
    """A property with a fixed set of values.

    :param others: other spellings of values, each with the value for which it stands.
    :param exact: whether upper and lower case are distinguished.
    """

    values: frozenset[str]
    others: Mapping[str, str] = field(default_factory=dict)
    exact: bool = True

    def read(self, text: str) -> str:
        """Return the value for which a text stands.

        :raises ValueError: the text does not stand for any of the values.
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
"""Image properties with a fixed set of values."""

FLAGS: Final = frozenset(
    (
        *("hw_ephemeral_encryption", "hw_firmware_stateless", "hw_locked_memory", "hw_mem_encryption"),
        *("hw_pmu", "hw_vif_multiqueue_enabled", "hw_virtio_packed_ring"),
    )
)
"""Image properties with a Boolean value. Any text is valid, so properties that do not affect a request are
left out.
"""

NUMBERS: Final = frozenset(
    (
        *("hw_cpu_cores", "hw_cpu_max_cores", "hw_cpu_max_sockets", "hw_cpu_max_threads", "hw_cpu_sockets"),
        *("hw_cpu_threads", "hw_device_id", "hw_maxphysaddr_bits", "hw_numa_nodes"),
        *("hw_redirected_usb_ports", "hw_serial_port_count", "hw_video_ram"),
        *("img_compression_level", "img_version"),
    )
)
"""Image properties with a number as their value."""

COMPARED: Final = frozenset(("img_hv_requested_version",))
"""Image properties that contain comparisons of versions, such as ``>=6.0``. Nova compares these versions with
the hosts that Placement returns. This service checks only the syntax.
"""

FREE: Final = frozenset(("hw_cpu_realtime_mask", "hw_machine_type", "hw_mem_page_size"))
"""Image properties for which any text is valid. Properties that do not affect a request are left out."""

FORMERLY: Final[Mapping[str, str]] = {
    "architecture": "hw_architecture",
    "hypervisor_type": "img_hv_type",
    "hypervisor_version_requires": "img_hv_requested_version",
    "vm_mode": "hw_vm_mode",
    "vmware_image_version": "img_version",
    "xenapi_device_id": "hw_device_id",
    "xenapi_image_compression_level": "img_compression_level",
}
"""Former names of image properties with checked values, each with the current name."""

_COMPARISON: Final = re.compile(r"\s*(?:<=|>=|<|>|!=|==)\s*(\S+)\s*")
_VERSION: Final = re.compile(
    r"v?(\d+!)?\d+(\.\d+)*"
    r"([-_.]?(alpha|a|beta|b|preview|pre|c|rc)[-_.]?\d*)?"
    r"(-\d+|[-_.]?(post|rev|r)[-_.]?\d*)?"
    r"([-_.]?dev[-_.]?\d*)?"
    r"(\+[a-z0-9]+([-_.][a-z0-9]+)*)?",
    re.ASCII | re.IGNORECASE,
)
"""Pattern of a version number by PEP 440."""


def check_comparisons(text: str) -> None:
    """Raise ValueError if a text is no list of comparisons of versions, such as ``>=6.0,<6.2``."""
    for each in text.split(","):
        found = _COMPARISON.fullmatch(each)
        if found is None or _VERSION.fullmatch(found[1]) is None:
            raise ValueError(text)


MAX_NODES: Final = 128
"""Maximum number of NUMA nodes of a guest. Nova ignores properties of nodes with higher numbers."""

_TRUE_TEXTS: Final = frozenset(("1", "t", "true", "on", "y", "yes"))
"""Texts that count as yes, as in oslo.utils."""


@dataclass(frozen=True, slots=True)
class TypedProperties:
    """The image properties that a translation uses, grouped by the type of their values.

    :param node_cpus: for each NUMA node, a set of its CPUs; None if the image does not assign CPUs to nodes.
    :param node_memory: for each NUMA node, MiB of memory; None if the image does not assign memory to nodes.
    """

    texts: Mapping[str, str]
    numbers: Mapping[str, int]
    flags: Mapping[str, bool]
    node_cpus: tuple[int, ...] | None
    node_memory: tuple[int, ...] | None
    traits: frozenset[str]


def parse_flag(text: str) -> bool:
    """Return whether a text counts as yes; unknown texts count as no, as in Nova."""
    return text.strip().lower() in _TRUE_TEXTS


def read(pairs: Pairs) -> TypedProperties:
    """Read the properties of an image.

    :raises InvalidRequest: a property has an invalid value; the message has the property and its value.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    flags: dict[str, bool] = {}
    for name, text in _in_present_words(dict(pairs)):
        try:
            if name in FLAGS:
                flags[name] = parse_flag(text)
            elif name in NUMBERS:
                numbers[name] = int(text)
            elif name in FREE:
                texts[name] = text
            elif name in COMPARED:
                check_comparisons(text)
            elif name in CHOICES:
                texts[name] = CHOICES[name].read(text)
        except ValueError:
            raise refusal_error(f"the image property {name} cannot be {text!r}") from None
    # properties of NUMA nodes and of traits have no former names, so they are read directly
    given = dict(pairs)
    return TypedProperties(
        texts,
        numbers,
        flags,
        by_node(given, "hw_numa_cpus", parse_cpus),
        by_node(given, "hw_numa_mem", int),
        # [6:] cuts off "trait:"
        frozenset(name[6:] for name, text in pairs if name.startswith("trait:") and text == "required"),
    )


def by_node(given: Mapping[str, str], name: str, read_one: Callable[[str], int]) -> tuple[int, ...] | None:
    """Return the values of the properties ``NAME.0``, ``NAME.1`` and so on, up to the first missing number.

    Return None if ``given`` has no property ``NAME.0``.

    :raises InvalidRequest: a value is invalid; the message has the property and its value.
    """
    found: list[int] = []
    for number in range(MAX_NODES):
        text = given.get(f"{name}.{number}")
        if text is None:
            break
        try:
            found.append(read_one(text))
        except ValueError:
            raise refusal_error(f"{name}.{number} cannot be {text!r}") from None
    return tuple(found) or None


def _in_present_words(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each property as a pair of its current name and its value."""
    # properties with former names come first, so that a property with the current name overrides them
    for former, name in FORMERLY.items():
        if former in given:
            yield name, given[former]
    if adapter := given.get("vmware_adaptertype"):  # two current properties replace this former property
        yield "hw_disk_bus", "ide" if adapter == "ide" else "scsi"
        if adapter != "ide":
            yield "hw_scsi_model", adapter
    yield from given.items()


@dataclass(frozen=True, slots=True)
class FlavorGuest:
    """The input of a translation: a flavor, its extra specs by name, and the properties of its image."""

    flavor: NovaFlavor
    specs: dict[str, str]
    image: TypedProperties

    @classmethod
    def of_flavor(cls, flavor: NovaFlavor) -> FlavorGuest:
        """Return the guest for a flavor and the image that the flavor object contains.

        :raises InvalidRequest: a property of the image has an invalid value.
        """
        return cls(flavor, dict(flavor.extra_specs), read(flavor.image.properties))

    def both_texts(self, name: str, prefix: str = "hw") -> tuple[str | None, str | None]:
        """Return the value of a feature in the flavor and its value in the image, each None if missing."""
        return self.specs.get(f"{prefix}:{name}"), self.image.texts.get(f"{prefix}_{name}")

    def agreed_text(self, name: str, prefix: str = "hw") -> str | None:
        """Return the value of a feature in flavor or image; None if neither has a value.

        :raises InvalidRequest: flavor and image have different values.
        """
        flavor, image = self.both_texts(name, prefix)
        if flavor and image and flavor != image:
            raise contradiction_error(prefix, name, flavor, image)
        return flavor or image

    def agreed_choice(self, name: str, prefix: str = "hw") -> str | None:
        """Return the value of a feature with a fixed set of values.

        The result is None if neither flavor nor image has a value.

        :raises InvalidRequest: the value is unknown, or flavor and image have different values.
        """
        value = self.agreed_text(name, prefix)
        check_known(prefix, name, value)
        return value

    def both_flags(self, name: str) -> tuple[bool | None, bool | None]:
        """Return the Boolean value of a feature in the flavor and that in the image, each None if missing."""
        spec = self.specs.get(f"hw:{name}")
        return None if spec is None else parse_flag(spec), self.image.flags.get(f"hw_{name}")

    def agreed_flag(self, name: str) -> bool | None:
        """Return the Boolean value of a feature in flavor or image; None if neither has a value.

        :raises InvalidRequest: flavor and image have different values.
        """
        flavor, image = self.both_flags(name)
        if flavor is not None and image is not None and flavor != image:
            raise contradiction_error("hw", name, self.specs[f"hw:{name}"], "yes" if image else "no")
        return image if flavor is None else flavor

    def both_numbers(self, name: str) -> tuple[int, int]:
        """Return the number of a feature in the flavor and its number in the image; a missing number is 0.

        :raises InvalidRequest: the value in the flavor is not a number.
        """
        spec = self.specs.get(f"hw:{name}", "0")
        try:
            return int(spec), self.image.numbers.get(f"hw_{name}", 0)
        except ValueError:
            raise refusal_error(f"the extra spec hw:{name} cannot be {spec!r}") from None

    def numbered_specs(self, kind: str) -> Iterator[tuple[str, str]]:
        """Yield the name after the colon, and the value, of each extra spec of a kind.

        The kind is the text before the colon, such as ``resources``. Extra specs with a number after the kind
        are included, and extra specs with any other suffix are left out.
        """
        for name, value in self.specs.items():
            before, colon, after = name.partition(":")
            suffix = before.removeprefix(kind)
            if before.startswith(kind) and colon and _is_number(suffix):
                yield after, value


def _is_number(suffix: str) -> bool:
    # isdigit() alone would accept digits of other scripts
    return suffix == "" or (suffix.isascii() and suffix.isdigit() and not suffix.startswith("0"))


def check_known(prefix: str, name: str, value: str | None) -> None:
    """Raise InvalidRequest if the value is not a possible value of the image property of the same name."""
    known = CHOICES[f"{prefix}_{name}"].values
    if value and value not in known:
        raise refusal_error(f"{prefix}:{name} cannot be {value!r}, only one of {', '.join(sorted(known))}")


def contradiction_error(prefix: str, name: str, flavor: str, image: str) -> InvalidRequest:
    """Return the error for a flavor and an image with different values of one feature."""
    return refusal_error(
        f"{prefix}:{name} of the flavor is {flavor!r}, {prefix}_{name} of the image {image!r}"
    )
