"""Reads settings, demands and Nova's metadata in the XML of a domain.

The format of the XML is described at https://libvirt.org/formatdomain.html.

Every user with the right to define domains can write the content of ``<metadata>``, and libvirt does not
check it. So this module checks each text before use.

*Settings* are in the agent's own namespace. A Nova flavor states settings as extra specs, which
:mod:`compute_agent.classification` reads. An example of settings in the metadata::

    <metadata>
      <guest:settings xmlns:guest="urn:placement-compute:guest:1">
        <guest:qos_class>LSR</guest:qos_class>
        <guest:thread_policy>isolate</guest:thread_policy>
        <guest:emulator_policy>share</guest:emulator_policy>
        <guest:resctrl>{"llc": {"schemata": {"range": [0, 30]}}}</guest:resctrl>
        <guest:blockio_class>bulk</guest:blockio_class>
        <guest:memory_type>dram</guest:memory_type>
        <guest:eviction_priority>10</guest:eviction_priority>
      </guest:settings>
    </metadata>

*Demands* limit where the guest may run. ``<numatune>`` with mode ``strict``, the default, demands NUMA nodes
of the host for the whole domain or for single cells of the guest. The agent ignores other modes; its own
bindings have mode ``restrictive``. Pins of another program are demands, too (see
:mod:`compute_agent.drivers.libvirt.domain_definition`).

*Nova's metadata* contains the flavor, the image, the owner and the kind of the root disk. Nova writes the
image and the extra specs since release 32 (2025.2).

https://docs.openstack.org/nova/latest/configuration/extra-specs.html has the names of extra specs. An example
of Nova's metadata::

    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:flavor name="m1.small">
        <nova:memory>2048</nova:memory> <nova:disk>20</nova:disk> <nova:swap>512</nova:swap>
        <nova:ephemeral>0</nova:ephemeral> <nova:vcpus>1</nova:vcpus>
        <nova:extraSpecs><nova:extraSpec name="hw:cpu_policy">dedicated</nova:extraSpec></nova:extraSpecs>
      </nova:flavor>
      <nova:image uuid="...">
        <nova:properties><nova:property name="hw_cpu_thread_policy">require</nova:property></nova:properties>
      </nova:image>
      <nova:owner><nova:user uuid="..."/><nova:project uuid="..."/></nova:owner>
      <nova:root type="image" uuid="..."/>
    </nova:instance>
"""

from __future__ import annotations

import functools
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from xml.etree import ElementTree

from compute_agent.drivers.base import GuestFlavor
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole
from compute_agent.host.pci_devices import MDEV_UUID
from compute_agent.model import cpuset
from compute_agent.model.guest import Guest, GuestCell, GuestIdentity, PlacementConstraints
from compute_agent.model.guest_settings import (
    MAX_VCPUS,
    SETTING_NAMES,
    GuestSettings,
    SettingSource,
    read_setting,
)
from compute_agent.model.resource import CPU_CLASSES

# Maximum number of characters of XML that are parsed: twice the limit of libvirt's protocol.
_MAX_LENGTH: Final = 8 << 20


# The cache has two entries, because several functions parse the live XML and the inactive XML of one domain
# in turn.
@functools.lru_cache(maxsize=2)
def parse(domain_xml: str) -> ElementTree.Element:
    """The root element of an XML text. Callers must not change the element, because a cache shares it.

    :raises ValueError: the text is too long, is not XML, or has a document type.
    """
    if len(domain_xml) > _MAX_LENGTH:
        raise ValueError(f"XML of {len(domain_xml)} characters")
    # A document type could define entities that expand until the memory is full.
    if "<!DOCTYPE" in domain_xml.partition("<domain")[0]:
        raise ValueError("XML with a document type")
    try:
        return ElementTree.fromstring(domain_xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from error


NAMESPACE: Final = "urn:placement-compute:guest:1"

# Nova raised version 1.0 to 1.1; a running domain keeps the version with which it was started.
NOVA_NAMESPACES: Final = (
    "http://openstack.org/xmlns/libvirt/nova/1.0",
    "http://openstack.org/xmlns/libvirt/nova/1.1",
)

DRIVER: Final = "libvirt"
"""The name of the driver in ``[guests] drivers`` and in documents."""

_MAX_SHOWN: Final = 80


# The name of the setting for each element in the agent's namespace. ``eviction_priority`` is the former name
# of ``priority``.
_ELEMENTS: Final = {"eviction_priority": "priority", **{name: name for name in SETTING_NAMES}}


def describe_domain(domain_xml: str) -> Guest:
    """The guest that the XML of a domain describes, with pid 0.

    Guest CPUs that are not plugged in are not counted. The settings are those in the metadata, with defaults
    for the other ones.

    :raises ValueError: the text is not the XML of a domain.
    """
    root = parse(domain_xml)
    number, name, vcpu = (root.find(tag) for tag in ("uuid", "name", "vcpu"))
    if number is None or name is None or vcpu is None or not number.text:
        raise ValueError("not the XML of a domain: uuid, name or vcpu is missing")
    declared: dict[str, Any] = {}
    problems: list[str] = []
    for element, text in _our_settings(root).items():
        # Unknown elements are skipped, because they may be settings of a later release.
        if element not in _ELEMENTS:
            continue
        try:
            declared[_ELEMENTS[element]] = read_setting(_ELEMENTS[element], text)
        except ValueError as error:
            problems.append(f"{element} = {text[:_MAX_SHOWN]!r} cannot be used ({error})")
    # The number is capped, because the XML can have any number here, and the agent builds one set of CPUs for
    # each guest CPU.
    vcpus = min(int(vcpu.get("current") or vcpu.text or 1), MAX_VCPUS)
    return Guest(
        str(uuid.UUID(number.text.strip())),
        DRIVER,
        name.text or "",
        0,
        GuestSettings(vcpus=vcpus, **declared),
        identity=_read_identity(root),
        declared=declared,
        declared_by=SettingSource.DOMAIN,
        declared_problems=tuple(problems),
        devices=read_devices(root),
    )


_DEVICE_PATHS: Final = (
    *("devices/hostdev[@type='pci']", "devices/interface[@type='hostdev']"),
    # QEMU takes the whole controller of such a disk by VFIO.
    "devices/disk[@type='nvme']",
)
_MEDIATED_PATH: Final = "devices/hostdev[@type='mdev']/source/address"
_ADDRESS_LIMITS: Final = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}


def read_devices(root: ElementTree.Element) -> frozenset[str]:
    """PCI addresses and uuids of mediated devices of the domain, without unreadable addresses."""
    sources = (element.find("source/address") for path in _DEVICE_PATHS for element in root.iterfind(path))
    found = {_read_address(source) for source in sources if source is not None}
    mediated = [each.get("uuid", "").lower() for each in root.iterfind(_MEDIATED_PATH)]
    return frozenset((found - {""}).union(filter(MDEV_UUID.fullmatch, mediated)))


def _read_address(source: ElementTree.Element) -> str:
    """A PCI address like ``0000:81:00.0`` from hexadecimal attributes; empty if unreadable."""
    numbers = []
    for name, limit in _ADDRESS_LIMITS.items():
        try:
            number = int(source.get(name, "0"), 0)
        except ValueError:
            return ""
        if not 0 <= number <= limit:
            return ""
        numbers.append(number)
    domain, bus, slot, function = numbers
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def run_number(domain_xml: str) -> str | None:
    """The id that libvirtd gave to this run of a domain; None if the domain does not run.

    :raises ValueError: the text is not XML.
    """
    return parse(domain_xml).get("id")


def usual_owner(capabilities: str) -> str:
    """The user of those QEMU processes that have no security label of their own, by libvirt's capabilities.

    libvirt takes this user from the option ``user`` of qemu.conf. The result is empty if the DAC security
    driver is off.

    :raises ValueError: the text is not XML.
    """
    for model in parse(capabilities).iterfind("host/secmodel"):
        if model.findtext("model") == "dac":
            return (model.findtext("baselabel") or "").partition(":")[0]
    return ""


def _our_settings(root: ElementTree.Element) -> dict[str, str]:
    prefix = f"{{{NAMESPACE}}}"
    found = root.iterfind(f"metadata/{prefix}settings/*")
    return {element.tag.removeprefix(prefix): (element.text or "").strip() for element in found}


def _find_instance(root: ElementTree.Element) -> tuple[ElementTree.Element | None, str]:
    """The element that Nova wrote into a domain, or None, and the prefix of its tags."""
    for namespace in NOVA_NAMESPACES:
        prefix = f"{{{namespace}}}"
        if (instance := root.find(f"metadata/{prefix}instance")) is not None:
            return instance, prefix
    return None, ""


def _read_identity(root: ElementTree.Element) -> GuestIdentity:
    """The names, owner, flavor and image that Nova wrote into a domain. Fields that are missing are empty."""
    instance, prefix = _find_instance(root)
    if instance is None:
        return GuestIdentity()
    flavor, image = instance.find(f"{prefix}flavor"), instance.find(f"{prefix}image")
    boot_image = instance.find(f"{prefix}root[@type='image']")
    project, user = (instance.find(f"{prefix}owner/{prefix}{tag}") for tag in ("project", "user"))
    return GuestIdentity(
        display_name=_text(instance.find(f"{prefix}name")),
        flavor=_read_attribute(flavor, "name"),
        extra_specs=_named_texts(flavor, f"{prefix}extraSpecs/{prefix}extraSpec"),
        project_id=_read_attribute(project, "uuid"),
        project_name=_text(project),
        user_id=_read_attribute(user, "uuid"),
        user_name=_text(user),
        image_id=_read_attribute(image, "uuid") or _read_attribute(boot_image, "uuid"),
        image_properties=_named_texts(image, f"{prefix}properties/{prefix}property"),
    )


def _read_attribute(element: ElementTree.Element | None, name: str) -> str:
    return "" if element is None else element.get(name, "")


def _text(element: ElementTree.Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _named_texts(element: ElementTree.Element | None, path: str) -> dict[str, str]:
    """The texts of the elements at ``path``, by their attribute ``name``."""
    found = () if element is None else element.iterfind(path)
    return {each.get("name", ""): _text(each) for each in found}


def read_owner(domain_xml: str) -> str:
    """The user of the QEMU process, as a name, or as ``+`` and a number; empty if not in the XML.

    :raises ValueError: the text is not XML.
    """
    # The user is in the DAC label ``USER:GROUP``. The live XML has the label in use. A definition has a label
    # only if its author set one.
    for label in parse(domain_xml).iterfind("seclabel[@model='dac']/label"):
        return (label.text or "").partition(":")[0]
    return ""


_STRICT: Final = "strict"


def parse_constraints(domain_xml: str) -> PlacementConstraints:
    """The NUMA nodes that the XML of a domain demands for all its memory and for single cells.

    :raises ValueError: the text is not XML, or a set of CPUs or nodes cannot be read.
    """
    root = parse(domain_xml)
    # libvirt numbers cells without an id by their position.
    vcpus = {
        cell.get("id", str(number)): cpuset.parse(cell.get("cpus", ""))
        for number, cell in enumerate(root.iterfind("cpu/numa/cell"))
    }
    nodes = frozenset[int]()
    if (memory := root.find("numatune/memory")) is not None:
        nodes = _strict_nodes(memory)
    cells = (
        GuestCell(vcpus.get(node.get("cellid", ""), frozenset()), _strict_nodes(node))
        for node in root.iterfind("numatune/memnode")
    )
    return PlacementConstraints(nodes, tuple(cell for cell in cells if cell.vcpus and cell.nodes))


def with_pins(
    constraints: PlacementConstraints, pins: Mapping[ThreadRole, frozenset[int]]
) -> PlacementConstraints:
    """``constraints`` with the pins of guest CPUs and of the emulator.

    Pins of I/O threads are left out, because I/O threads get the emulator's CPUs.
    """
    vcpus = {role.vcpu: cpus for role, cpus in pins.items() if role.vcpu is not None}
    return replace(constraints, pins=tuple(sorted(vcpus.items())), emulator=pins.get(EMULATOR, frozenset()))


def _strict_nodes(element: ElementTree.Element) -> frozenset[int]:
    if element.get("mode", _STRICT) != _STRICT:
        return frozenset()
    return cpuset.parse(element.get("nodeset", ""))


_MIB_IN_GIB: Final = 1024
# The largest amount of one allocation in Placement.
_MAX_AMOUNT: Final = (1 << 31) - 1
# A longer number exceeds the largest amount in any case, and takes long to convert.
_MAX_DIGITS: Final = 20
# The syntax of Placement 1.33 for group suffixes. The pattern ends with ``\Z`` and not with ``$``, because
# ``$`` also matches before a final newline.
_RESOURCES: Final = re.compile(r"resources(?P<group>[A-Za-z0-9_-]{0,64}):(?P<name>[A-Z0-9_]+)\Z")


def read_flavor(domain_xml: str) -> GuestFlavor:
    """The flavor that Nova wrote into a domain; empty if Nova wrote no flavor. Malformed numbers count as 0.

    :raises ValueError: the text is not the XML of a domain.
    """
    root = parse(domain_xml)
    instance, prefix = _find_instance(root)
    flavor = None if instance is None else instance.find(f"{prefix}flavor")
    if instance is None or flavor is None:
        return GuestFlavor()
    identity = _read_identity(root)
    tags = ("memory", "disk", "ephemeral", "swap", "vcpus")
    memory, disk, ephemeral, swap, vcpus = (_read_amount(flavor.findtext(f"{prefix}{tag}")) for tag in tags)
    # The root disk does not count for a guest that boots from a volume, because the volume is not on this
    # host.
    if instance.find(f"{prefix}root[@type='image']") is None:
        disk = 0
    # Nova rounds swap, which flavors have in MiB, up to whole GiB of DISK_GB.
    resources = {"MEMORY_MB": memory, "DISK_GB": disk + ephemeral + -(-swap // _MIB_IN_GIB)}
    own = _dedicated_vcpus(identity.extra_specs, vcpus)
    # Nova before release 32 wrote no extra specs.
    without_specs = flavor.find(f"{prefix}extraSpecs") is None
    return GuestFlavor(
        _with_specs(resources, identity.extra_specs),
        None if without_specs else _dedicated_count(identity.extra_specs, vcpus, own),
        identity.project_id,
        identity.user_id,
        own or frozenset(),
    )


def _with_specs(resources: Mapping[str, int], specs: Mapping[str, str]) -> dict[str, int]:
    """The flavor's amounts with its extra specs ``resources:CLASS=N`` applied, without VCPU and PCPU."""
    amounts = Counter(resources)
    found = [(match, amount) for name, amount in specs.items() if (match := _RESOURCES.match(name))]
    # The groups are sorted, so that the group without a suffix comes first: its entry must replace the
    # flavor's own amount before other groups add to the amount.
    for match, amount in sorted(found, key=lambda pair: pair[0]["group"]):
        # ``resources:CLASS`` replaces the flavor's own amount; groups with a suffix (``resources1:CLASS``)
        # add to it.
        if match["group"]:
            amounts[match["name"]] += _read_amount(amount)
        else:
            amounts[match["name"]] = _read_amount(amount)
    return {name: amount for name, amount in amounts.items() if amount > 0 and name not in CPU_CLASSES}


def _dedicated_count(specs: Mapping[str, str], vcpus: int, own: frozenset[int] | None) -> int | None:
    """The number of guest CPUs that have dedicated host CPUs.

    The result is None if the mask of a ``mixed`` flavor cannot be read.

    :param vcpus: the number of guest CPUs of the flavor.
    :param own: the dedicated guest CPUs of a ``mixed`` flavor.
    """
    match specs.get("hw:cpu_policy"):
        case "dedicated":
            return vcpus
        case "mixed":
            return None if own is None else len(own)
        case _:
            return _read_amount(specs.get("resources:PCPU"))


def _dedicated_vcpus(specs: Mapping[str, str], vcpus: int) -> frozenset[int] | None:
    """The dedicated guest CPUs of a ``mixed`` flavor; empty for other flavors, None if unreadable."""
    if specs.get("hw:cpu_policy") != "mixed":
        return frozenset()
    # Nova uses the mask of realtime CPUs if there is no mask of dedicated CPUs.
    mask = (specs.get("hw:cpu_dedicated_mask") or specs.get("hw:cpu_realtime_mask", "")).strip()
    everything = f"0-{vcpus - 1}"
    # In Nova's notation a mask that begins with "^" excludes CPUs from all CPUs.
    try:
        cpus = cpuset.parse(f"{everything},{mask}" if mask.startswith("^") else mask)
        return cpus & cpuset.parse(everything)
    except ValueError:
        return None


def _read_amount(text: str | None) -> int:
    """An amount in the range of Placement (at most 2^31 - 1) from a text; 0 if the text is not a number."""
    text = (text or "").strip()
    if not text.isascii() or not text.isdecimal():
        return 0
    # int() of thousands of digits takes long, and raises ValueError beyond sys.get_int_max_str_digits().
    return min(int(text[:_MAX_DIGITS]), _MAX_AMOUNT)
