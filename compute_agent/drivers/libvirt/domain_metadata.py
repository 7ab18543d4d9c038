"""The XML that libvirt shows of a domain, parsed.

What is in its ``<metadata>`` anybody may have written who may define domains, and libvirt hands it on as it
is.

What a domain's XML says about the guest (https://libvirt.org/formatdomain.html), as plain values.

Settings are in the domain's ``<metadata>`` in our own namespace. Those of Nova's flavor are extra specs, from
which :mod:`compute_agent.classification` takes what counts.

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

What a domain's XML demands of where the guest runs (https://libvirt.org/formatdomain.html).

Memory that comes strictly from some NUMA nodes of the host, of the whole domain or of single cells of the
guest, is a demand: ``<numatune>`` with mode ``strict``, which is the default. Other modes are wishes, and the
agent's own is ``restrictive``. Pins in a definition that somebody else than the agent wrote are demands, too
(see :mod:`definition`).

The order that Nova wrote into a domain's ``<metadata>``: its flavor, its image, its owner, and what it boots
from. Image and extra specs are there since Nova 32 (2025.2).

The names are those of https://docs.openstack.org/nova/latest/configuration/extra-specs.html

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
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from xml.etree import ElementTree

from compute_agent.drivers.base import GuestFlavor
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole
from compute_agent.model import cpuset
from compute_agent.model.guest import GuestCell, GuestIdentity, PlacementConstraints
from compute_agent.model.guest_settings import MAX_VCPUS, SETTING_NAMES, GuestSettings, read_setting
from compute_agent.model.resource import CPU_CLASSES

_MAX_LENGTH: Final = 8 << 20
"""Characters; twice what libvirt's protocol lets through."""


@functools.lru_cache(maxsize=2)  # several ask the same text of a domain, and of its definition, in turn
def parse(domain_xml: str) -> ElementTree.Element:
    """The root element, which nobody changes.

    :raises ValueError: that is not XML, or not as libvirt writes it: a document type could define entities
        that fill the memory.
    """
    if len(domain_xml) > _MAX_LENGTH:
        raise ValueError(f"XML of {len(domain_xml)} characters")
    if "<!DOCTYPE" in domain_xml.partition("<domain")[0]:
        raise ValueError("XML with a document type")
    try:
        return ElementTree.fromstring(domain_xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from error


NAMESPACE: Final = "urn:placement-compute:guest:1"

NOVA_NAMESPACES: Final = (
    "http://openstack.org/xmlns/libvirt/nova/1.0",
    "http://openstack.org/xmlns/libvirt/nova/1.1",
)

_MAX_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class DomainDescription:
    """A domain.

    ``owner`` is the user its process runs as, a name or a number after ``+``; empty if libvirt does not say.
    ``declared`` are the settings that the domain itself has, ``settings`` these with defaults for the others.
    ``problems`` are settings that cannot be used, in words. ``identity`` is what Nova says of the domain.
    """

    uuid: str
    name: str
    settings: GuestSettings
    declared: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""
    problems: tuple[str, ...] = ()
    identity: GuestIdentity = field(default_factory=GuestIdentity)


_ELEMENTS: Final = {"eviction_priority": "priority", **{name: name for name in SETTING_NAMES}}
"""The settings by element of our namespace, with the name that ``priority`` has had from the beginning."""


def describe_domain(domain_xml: str) -> DomainDescription:
    """What the XML of a running domain says.

    The number of guest CPUs is that of the domain: those which are plugged in now.

    :raises ValueError: it is not the XML of a domain.
    """
    root = parse(domain_xml)
    uuid, name, vcpu = (root.find(tag) for tag in ("uuid", "name", "vcpu"))
    if uuid is None or name is None or vcpu is None or not uuid.text:
        raise ValueError("not the XML of a domain: uuid, name or vcpu is missing")
    declared: dict[str, Any] = {}
    problems: list[str] = []
    for element, text in _our_settings(root).items():
        if element not in _ELEMENTS:
            continue
        try:
            declared[_ELEMENTS[element]] = read_setting(_ELEMENTS[element], text)
        except ValueError as error:
            problems.append(f"{element} = {text[:_MAX_SHOWN]!r} cannot be used ({error})")
    vcpus = min(int(vcpu.get("current") or vcpu.text or 1), MAX_VCPUS)
    return DomainDescription(
        uuid.text.strip(),
        name.text or "",
        GuestSettings(vcpus=vcpus, **declared),
        declared,
        _read_owner(root),
        tuple(problems),
        read_identity(root),
    )


def run_number(domain_xml: str) -> str | None:
    """The number that libvirtd gave to this run of a domain; None if it does not run.

    :raises ValueError: that is not the XML of a domain.
    """
    return parse(domain_xml).get("id")


def usual_owner(capabilities: str) -> str:
    """The user that libvirt's capabilities have for processes of domains without a label of their own.

    It is what qemu.conf calls ``user``; empty if there is none.

    :raises ValueError: that is not XML.
    """
    for model in parse(capabilities).iterfind("host/secmodel"):
        if model.findtext("model") == "dac":
            return (model.findtext("baselabel") or "").partition(":")[0]
    return ""


def _our_settings(root: ElementTree.Element) -> dict[str, str]:
    prefix = f"{{{NAMESPACE}}}"
    found = root.iterfind(f"metadata/{prefix}settings/*")
    return {element.tag.removeprefix(prefix): (element.text or "").strip() for element in found}


def read_identity(root: ElementTree.Element) -> GuestIdentity:
    """What Nova says of a domain: names, owner, flavor and image. Older Nova says less."""
    for namespace in NOVA_NAMESPACES:
        prefix = f"{{{namespace}}}"
        instance = root.find(f"metadata/{prefix}instance")
        if instance is None:
            continue
        flavor, image = instance.find(f"{prefix}flavor"), instance.find(f"{prefix}image")
        boots_from = instance.find(f"{prefix}root")
        boot_image = "" if boots_from is None or boots_from.get("type") != "image" else boots_from.get("uuid")
        project, user = (instance.find(f"{prefix}owner/{prefix}{tag}") for tag in ("project", "user"))
        return GuestIdentity(
            display_name=_text(instance.find(f"{prefix}name")),
            flavor="" if flavor is None else flavor.get("name", ""),
            extra_specs=_named_texts(flavor, f"{prefix}extraSpecs/{prefix}extraSpec"),
            project_id="" if project is None else project.get("uuid", ""),
            project_name=_text(project),
            user_id="" if user is None else user.get("uuid", ""),
            user_name=_text(user),
            image_id=("" if image is None else image.get("uuid", "")) or boot_image or "",
            image_properties=_named_texts(image, f"{prefix}properties/{prefix}property"),
        )
    return GuestIdentity()


def _text(element: ElementTree.Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _named_texts(element: ElementTree.Element | None, path: str) -> dict[str, str]:
    """Texts of the elements of a path, by their attribute ``name``."""
    found = () if element is None else element.iterfind(path)
    return {each.get("name", ""): _text(each) for each in found}


def _read_owner(root: ElementTree.Element) -> str:
    """The user of the label ``USER:GROUP`` that the DAC security driver gave the process."""
    for label in root.iterfind("seclabel[@model='dac']/label"):
        return (label.text or "").partition(":")[0]
    return ""


_STRICT: Final = "strict"


def parse_constraints(domain_xml: str) -> PlacementConstraints:
    """What the XML of a domain demands.

    :raises ValueError: this is not XML, or has sets of CPUs or nodes that are none.
    """
    root = parse(domain_xml)
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
    """The same with these pins demanded, and no others. Those of I/O threads go with the emulator's."""
    vcpus = {role.vcpu: cpus for role, cpus in pins.items() if role.vcpu is not None}
    return replace(constraints, pins=tuple(sorted(vcpus.items())), emulator=pins.get(EMULATOR, frozenset()))


def _strict_nodes(element: ElementTree.Element) -> frozenset[int]:
    if element.get("mode", _STRICT) != _STRICT:
        return frozenset()
    return cpuset.parse(element.get("nodeset", ""))


_MIB_IN_GIB: Final = 1024
_MAX_AMOUNT: Final = (1 << 31) - 1
_MAX_DIGITS: Final = 20
_RESOURCES: Final = re.compile(r"resources(?P<group>[A-Za-z0-9_-]{0,64}):(?P<name>[A-Z0-9_]+)\Z")


def read_flavor(domain_xml: str) -> GuestFlavor:
    """What Nova says of a domain; an empty order if it says nothing. Numbers that are none are left out.

    :raises ValueError: it is not the XML of a domain.
    """
    root = parse(domain_xml)
    for namespace in NOVA_NAMESPACES:
        prefix = f"{{{namespace}}}"
        instance = root.find(f"metadata/{prefix}instance")
        flavor = None if instance is None else instance.find(f"{prefix}flavor")
        if instance is not None and flavor is not None:
            return _read(instance, flavor, prefix)
    return GuestFlavor()


def _read(instance: ElementTree.Element, flavor: ElementTree.Element, prefix: str) -> GuestFlavor:
    listed = flavor.find(f"{prefix}extraSpecs")
    specs = {} if listed is None else {it.get("name", ""): (it.text or "").strip() for it in listed}

    def number(name: str) -> int:
        return _read_amount(flavor.findtext(f"{prefix}{name}"))

    def owner(name: str) -> str:
        found = instance.find(f"{prefix}owner/{prefix}{name}")
        return "" if found is None else found.get("uuid", "")

    # The root disk of a guest that boots from a volume is none of this host's.
    boots_from = instance.find(f"{prefix}root")
    disk = number("disk") if boots_from is not None and boots_from.get("type") == "image" else 0
    swap_gib = -(-number("swap") // _MIB_IN_GIB)
    resources = {"MEMORY_MB": number("memory"), "DISK_GB": disk + number("ephemeral") + swap_gib}
    vcpus = number("vcpus")
    own = _dedicated_vcpus(specs, vcpus)
    dedicated = None if listed is None else _dedicated_count(specs, vcpus, own)
    owners = owner("project"), owner("user")
    return GuestFlavor(_with_specs(resources, specs), dedicated, *owners, own or frozenset())


def _with_specs(resources: Mapping[str, int], specs: Mapping[str, str]) -> dict[str, int]:
    """The resources with those of extra specs.

    ``resources:CLASS`` is in place of the flavor's own amount, numbered groups (``resources1:CLASS``) are
    beside it.
    """
    amounts = Counter(resources)
    found = [(match, amount) for name, amount in specs.items() if (match := _RESOURCES.match(name))]
    for match, amount in sorted(found, key=lambda pair: pair[0]["group"]):
        if match["group"]:
            amounts[match["name"]] += _read_amount(amount)
        else:
            amounts[match["name"]] = _read_amount(amount)
    return {name: amount for name, amount in amounts.items() if amount > 0 and name not in CPU_CLASSES}


def _dedicated_count(specs: Mapping[str, str], vcpus: int, own: frozenset[int] | None) -> int | None:
    """How many guest CPUs are dedicated; None if the mask that tells it cannot be read."""
    match specs.get("hw:cpu_policy"):
        case "dedicated":
            return vcpus
        case "mixed":
            return None if own is None else len(own)
        case _:
            return _read_amount(specs.get("resources:PCPU"))


def _dedicated_vcpus(specs: Mapping[str, str], vcpus: int) -> frozenset[int] | None:
    """The guest CPUs that are dedicated with policy mixed; None if the mask that tells it cannot be read.

    Nova takes the realtime CPUs for them where the flavor has no mask of dedicated ones.
    """
    if specs.get("hw:cpu_policy") != "mixed":
        return frozenset()
    mask = (specs.get("hw:cpu_dedicated_mask") or specs.get("hw:cpu_realtime_mask", "")).strip()
    everything = f"0-{vcpus - 1}"
    try:
        cpus = cpuset.parse(f"{everything},{mask}" if mask.startswith("^") else mask)
        return cpus & cpuset.parse(everything)
    except ValueError:
        return None


def _read_amount(text: str | None) -> int:
    """A number that Placement could have as an amount; 0 for what is none."""
    text = (text or "").strip()
    if not text.isascii() or not text.isdecimal():
        return 0
    return min(int(text[:_MAX_DIGITS]), _MAX_AMOUNT)
