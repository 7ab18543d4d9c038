"""The PCI devices that a host offers: entries of ``[pci] device_spec`` in Nova's syntax.

Nova's configuration reference (``[pci] device_spec``) lists the keys. Each entry is a JSON object or a list
of JSON objects. An object selects devices by vendor, product or address, and describes them. The first entry
that matches a device applies.

Nova itself tracks the devices that its option ``[pci] device_spec`` selects. With ``report_in_placement =
false``, the default, these devices are not in Placement. Devices that the option gives a ``physical_network``
are never in Placement. If the agent offered such a device, two guests could get it. So the agent offers no
device while it cannot read all options of nova-compute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import os_resource_classes
import os_traits
from oslo_config import cfg

from compute_agent.host.pci_devices import MdevType, PciDevice
from compute_agent.model.messages import ConfigError, named_few, printable_text
from compute_agent.model.resource import OWN_CLASSES

OPTION: Final = "[pci] device_spec"

_FIELDS: Final = ("domain", "bus", "slot", "function")
_LIMITS: Final = {"domain": 0xFFFF, "bus": 0xFF, "slot": 0x1F, "function": 0x7}
_WIDTHS: Final = {"domain": 4, "bus": 2, "slot": 2, "function": 1}
_ANY: Final = "*"
# The ids of vendors and products have four hexadecimal digits.
_MAX_ID: Final = 0xFFFF
SHOWN_DEVICES: Final = 5
"""Maximum number of addresses of devices that a message names."""
_MAX_QUOTED: Final = 200
"""Maximum number of characters of a value that a message quotes."""
# Placement's limit for names of traits and resource classes.
_NAME_LIMIT: Final = 255
_NAME: Final = re.compile(r"[A-Z0-9_]+", re.ASCII)
# The words that count as true in oslo.utils, which Nova uses.
_TRUE: Final = frozenset({"1", "t", "true", "on", "y", "yes"})

_KEYS: Final = frozenset(
    {"vendor_id", "product_id", "address", "devname", "resource_class", "traits", "physical_network"}
    | {
        "remote_managed",
        "trusted",
        "managed",
        "live_migratable",
        "one_time_use",
        "mdev_type",
        "max_instances",
    }
)

ONE_TIME_USE: Final = "HW_PCI_ONE_TIME_USE"
"""The trait of devices that serve one guest and then need cleaning; os-traits before 3.4 does not have this
trait."""

_TRAIT_TAGS: Final = {
    "live_migratable": os_traits.HW_PCI_LIVE_MIGRATABLE,
    "one_time_use": ONE_TIME_USE,
}
"""The keys of an entry that become traits of the device's provider."""

AddressFields = tuple[str, str, str, str]
"""The domain, bus, slot and function of a PCI address, as texts in the notation of PCI addresses."""


def named_devices(addresses: Sequence[str]) -> str:
    """The first addresses of devices and the number of further devices, for messages."""
    return named_few(addresses, SHOWN_DEVICES)


def address_fields(address: str) -> AddressFields:
    """Split a PCI address such as ``0000:81:00.0`` into its fields."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return domain, bus, slot, function


@dataclass(frozen=True, slots=True)
class AddressGlob:
    """An address rule with fixed fields; ``*`` matches any value of a field."""

    fields: AddressFields

    @property
    def single_address(self) -> str | None:
        """The address that the rule selects; None if the rule can select several addresses."""
        if _ANY in self.fields:
            return None
        domain, bus, slot, function = self.fields
        return f"{domain}:{bus}:{slot}.{function}"

    def matches_address(self, fields: AddressFields) -> bool:
        """Whether the rule selects the address with these fields."""
        return all(mine in (_ANY, theirs) for mine, theirs in zip(self.fields, fields, strict=True))


@dataclass(frozen=True, slots=True)
class AddressRegex:
    """A rule with a regular expression for each field.

    As in Nova, an expression has to match at the beginning of its field.
    """

    patterns: tuple[re.Pattern[str], ...]

    def matches_address(self, fields: AddressFields) -> bool:
        """Whether the rule selects the address with these fields."""
        return all(pattern.match(each) for pattern, each in zip(self.patterns, fields, strict=True))


AddressRule = AddressGlob | AddressRegex
"""Selects PCI devices by their address."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """An entry of ``[pci] device_spec``.

    :ivar vendor_id: the vendor as four hexadecimal digits in lower case, or ``*`` for any.
    :ivar product_id: the product as four hexadecimal digits in lower case, or ``*`` for any.
    :ivar resource_class: the resource class of the devices; empty means a class that names vendor and
        product.
    :ivar neutrons: whether the devices belong to Neutron, so that the agent offers none of them.
    :ivar managed: whether libvirt binds the VFIO driver to the device; otherwise the operator must have bound
        that driver.
    :ivar mdev_type: the type of mediated devices that the device makes for guests; empty if guests get the
        device itself.
    :ivar max_instances: the maximum number of mediated devices of a card; None means as many as the driver
        can make.
    :ivar text: the entry as it is written in the ini file.
    """

    vendor_id: str = _ANY
    product_id: str = _ANY
    address: AddressRule = AddressGlob((_ANY, _ANY, _ANY, _ANY))
    resource_class: str = ""
    traits: frozenset[str] = frozenset()
    neutrons: bool = False
    managed: bool = True
    mdev_type: str = ""
    max_instances: int | None = None
    text: str = ""

    def matches_device(self, device: PciDevice, physical: Mapping[str, PciDevice]) -> bool:
        """Whether the entry selects a device.

        The full address of a physical function selects its virtual functions, too.

        :param physical: the physical functions of the host, by address.
        """
        if self.vendor_id not in (_ANY, device.vendor_id) or self.product_id not in (_ANY, device.product_id):
            return False
        if self.mdev_type and self.type_of(device) is None:
            return False
        if self.address.matches_address(address_fields(device.address)):
            return True
        # As in Nova, an address without wildcards that selects a card also selects the card's virtual
        # functions.
        single = self.address.single_address if isinstance(self.address, AddressGlob) else None
        return single is not None and single == device.physical_function and single in physical

    def type_of(self, device: PciDevice) -> MdevType | None:
        """The entry's type of mediated devices, if the device can make it; otherwise None."""
        return next((each for each in device.mdev_types if each.id == self.mdev_type), None)

    def class_of(self, device: PciDevice) -> str:
        """The resource class of a device that the entry selects."""
        if self.mdev_type:
            return self.resource_class or os_resource_classes.VGPU
        return self.resource_class or f"CUSTOM_PCI_{device.vendor_id}_{device.product_id}".upper()


def parse_json(option: str, text: str) -> Any:
    """Parse the JSON value of an option.

    :raises ConfigError: the value is not JSON, or nested too deeply. The message names the option.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option} = {text[:_MAX_QUOTED]}: not JSON: {error}") from error


def parse_device_specs(texts: Iterable[str]) -> tuple[DeviceSpec, ...]:
    """Parse the values of ``[pci] device_spec``, in their order.

    :raises ConfigError: a value is not JSON, or has a key or value that Nova refuses. The message names it.
    """
    found: list[DeviceSpec] = []
    for text in texts:
        read = parse_json(OPTION, text)
        for entry in read if isinstance(read, list) else [read]:
            if not isinstance(entry, dict):
                raise ConfigError(f"{OPTION} = {text}: {entry!r} is not a JSON object")
            try:
                found.append(_parse_entry(entry))
            except ValueError as error:
                raise ConfigError(f"{OPTION} = {text}: {error}") from error
    return tuple(found)


def match_devices(
    specs: Sequence[DeviceSpec], devices: Iterable[PciDevice]
) -> tuple[tuple[PciDevice, DeviceSpec], ...]:
    """Pair each device with the first entry that selects it.

    Bridges are left out, and so are devices that no entry selects.
    """
    known = tuple(devices)
    # The physical functions are needed even if no entry selects them, because the address of a physical
    # function also selects its virtual functions.
    physical = {device.address: device for device in known if device.is_physical}
    return tuple(
        (device, spec)
        for device in known
        if not device.is_bridge
        and (spec := next((one for one in specs if one.matches_device(device, physical)), None))
    )


def _parse_entry(entry: Mapping[str, Any]) -> DeviceSpec:
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise ValueError(f"unknown key {printable_text(unknown[0])}; known are {', '.join(sorted(_KEYS))}")
    if entry.get("devname"):
        # Nova, too, refuses devname together with report_in_placement.
        raise ValueError(
            "devname selects a device only until a guest has it, as its network interface goes then: use"
            " address"
        )
    return DeviceSpec(
        vendor_id=_parse_identity(entry, "vendor_id"),
        product_id=_parse_identity(entry, "product_id"),
        address=_parse_address(entry.get("address") or "*:*:*.*"),
        resource_class=_parse_class(_parse_text(entry, "resource_class")),
        traits=_parse_traits(_parse_text(entry, "traits"))
        | {trait for key, trait in _TRAIT_TAGS.items() if _parse_flag(entry, key)},
        neutrons=bool(entry.get("physical_network")) or _parse_flag(entry, "remote_managed"),
        managed="managed" not in entry or _parse_flag(entry, "managed"),
        mdev_type=_parse_text(entry, "mdev_type"),
        max_instances=_parse_count(entry, "max_instances"),
        text=json.dumps(entry),
    )


def _parse_text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, not a text")
    return value.strip()


def _parse_count(entry: Mapping[str, Any], key: str) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} is {value!r}, not a whole number above 0")
    if not entry.get("mdev_type"):
        raise ValueError(f"{key} is for mediated devices: name their mdev_type")
    return value


def _parse_flag(entry: Mapping[str, Any], key: str) -> bool:
    return str(entry.get(key, "")).strip().lower() in _TRUE


def _parse_identity(entry: Mapping[str, Any], key: str) -> str:
    text = _parse_text(entry, key) or _ANY
    return text if text == _ANY else f"{_parse_hex(key, text, _MAX_ID):04x}"


def _parse_hex(name: str, text: str, limit: int) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        # "from None" leaves out the error of int(), which adds nothing to this message.
        raise ValueError(f"{name} {text!r} is not a hexadecimal number") from None
    if not 0 <= value <= limit:
        raise ValueError(f"{name} {text} is not between 0 and {limit:X}")
    return value


def _parse_address(value: Any) -> AddressRule:
    if isinstance(value, str):
        return AddressGlob(_parse_glob(value))
    if not isinstance(value, dict):
        raise ValueError(f"address is {value!r}, neither a text nor an object")
    if unknown := sorted(value.keys() - set(_FIELDS)):
        name = printable_text(unknown[0])
        raise ValueError(f"address has the unknown field {name}; known are {', '.join(_FIELDS)}")
    patterns = []
    for name in _FIELDS:
        text = value.get(name, ".*")
        try:
            patterns.append(re.compile(text))
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise ValueError(f"{name} {text!r} of the address is not a regular expression: {error}") from None
    return AddressRegex(tuple(patterns))


def _parse_glob(text: str) -> AddressFields:
    """The fields of an address text. Missing fields on the left, and empty fields, become ``*``."""
    before, _, function = text.partition(".")
    parts = before.split(":")
    if len(parts) > len(_FIELDS) - 1:
        raise ValueError(f"address {text!r} is not DOMAIN:BUS:SLOT.FUNCTION")
    parts = [_ANY] * (len(_FIELDS) - 1 - len(parts)) + parts + [function]
    fields = []
    for name, part in zip(_FIELDS, parts, strict=True):
        part = part.strip() or _ANY
        known = part if part == _ANY else f"{_parse_hex(name, part, _LIMITS[name]):0{_WIDTHS[name]}x}"
        fields.append(known)
    domain, bus, slot, function = fields
    return domain, bus, slot, function


def _parse_class(text: str) -> str:
    """The name of a resource class as Nova spells it: in upper case, with ``CUSTOM_`` unless standard."""
    name = text.upper()
    if name and name not in os_resource_classes.STANDARDS and not os_resource_classes.is_custom(name):
        name = os_resource_classes.normalize_name(name) or ""
    _check_name("resource_class", name)
    if name in OWN_CLASSES:
        raise ValueError(f"resource_class {name} has another meaning to the agent: choose another name")
    return name


def _parse_traits(text: str) -> frozenset[str]:
    """The names of traits as Nova spells them: in upper case, with ``CUSTOM_`` unless they are standard."""
    standard = frozenset(os_traits.get_traits())
    names = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        name = part.upper()
        if name not in standard and not os_traits.is_custom(name):
            name = os_traits.normalize_name(name)
        _check_name("traits", name)
        if name == os_traits.COMPUTE_MANAGED_PCI_DEVICE:
            raise ValueError(f"the trait {name} marks devices that nova-compute reports: remove it")
        names.add(name)
    return frozenset(names)


def _check_name(key: str, name: str) -> None:
    if name and (len(name) > _NAME_LIMIT or not _NAME.fullmatch(name)):
        raise ValueError(
            f"{key} {name[:60]!r} is not a name that Placement accepts: A-Z, 0-9 and _, at most {_NAME_LIMIT}"
        )


_SPECS: Final = (
    ("DEFAULT", "pci_passthrough_whitelist"),
    ("pci", "passthrough_whitelist"),
    ("pci", "device_spec"),
)
"""The sections and names of the option: two names in older configurations, and the present name."""
_REPORTS: Final = ("pci", "report_in_placement")
_TRUE_WORDS: Final = frozenset({"1", "true", "on", "yes"})


@dataclass(frozen=True, slots=True)
class NovaDevices:
    """The options of the section ``[pci]`` of nova-compute.

    :ivar reports: whether nova-compute reports its devices to Placement.
    :ivar problems: messages about files and entries that could not be read; empty if all were read.
    """

    specs: tuple[DeviceSpec, ...] = ()
    reports: bool = False
    problems: tuple[str, ...] = ()


def read_nova_devices(paths: Iterable[Path]) -> NovaDevices:
    """Read the options of nova-compute from its files.

    As in oslo.config, entries for devices come from all files. Any other option has its value from the last
    file that sets the option.
    """
    texts, reports = list[str](), False
    problems = []
    for path in paths:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(str(path), sections).parse()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, cfg.ParseError) as error:
            problems.append(
                f"[pci] nova_config: {path} cannot be read ({error}): let the agent read the file, or name"
                " the right one"
            )
            continue
        for section, name in _SPECS:
            texts += _written_values(sections, section, name)
        if given := _written_values(sections, *_REPORTS):
            reports = given[-1].strip().lower() in _TRUE_WORDS
    specs: list[DeviceSpec] = []
    for text in texts:
        try:
            specs += parse_device_specs([text])
        except ConfigError as error:
            problems.append(
                "[pci] nova_config: the agent cannot read an entry of nova-compute, so change it there:"
                f" {error}"
            )
    return NovaDevices(tuple(specs), reports, tuple(problems))


def _written_values(
    sections: Mapping[str, Mapping[str, Sequence[str]]], section: str, name: str
) -> list[str]:
    # As in oslo.config, the name of a section is compared without regard to case.
    found = (options for written, options in sections.items() if written.lower() == section.lower())
    return [value for options in found for value in options.get(name, ())]


def without_novas(
    nova: NovaDevices, specs: Sequence[DeviceSpec], devices: Sequence[PciDevice]
) -> tuple[tuple[PciDevice, ...], tuple[str, ...]]:
    """Leave out the cards that nova-compute gives to guests without Placement.

    If some options of nova-compute could not be read, all cards are left out.

    :param specs: the entries of the agent's own option ``[pci] device_spec``.
    :return: the devices of all other cards, and messages about the cards that are left out although the
        agent's entries select them.
    """
    given = {
        device.card_address
        for device, spec in match_devices(nova.specs, devices)
        if spec.neutrons or not nova.reports
    }
    selected = {device.card_address for device, _ in match_devices(specs, devices)}
    sentences = list[str]()
    if both := sorted(selected & given):
        sentences.append(
            f"{named_devices(both)}: nova-compute gives them to guests without Placement, so the agent"
            " does not offer them. Set report_in_placement = true in section pci of nova.conf, or remove them"
            " from device_spec there"
        )
    if nova.problems and (unsure := sorted(selected - given)):
        sentences += nova.problems
        sentences.append(
            f"{named_devices(unsure)}: nova-compute may give them to guests, so the agent does not offer"
            " them until it can read all these options and is reloaded. If nova-compute gives no devices to"
            " guests, set an empty [pci] nova_config"
        )
        given |= selected
    left = tuple(device for device in devices if device.card_address not in given)
    return left, tuple(sentences)
