"""The XML that libvirt shows of a domain, parsed.

What is in its ``<metadata>`` anybody may have written who may define domains, and libvirt hands it on as it
is.

What a domain's XML says about the guest (https://libvirt.org/formatdomain.html), as plain values.

Settings are in the domain's ``<metadata>``: in our own namespace, and in Nova's, whose flavor has them as
extra specs. Where both speak, ours is heard.

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

The order that Nova wrote into a domain's ``<metadata>``: its flavor, its owner, and what it boots from.

The names are those of https://docs.openstack.org/nova/latest/configuration/extra-specs.html

    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:flavor name="m1.small">
        <nova:memory>2048</nova:memory> <nova:disk>20</nova:disk> <nova:swap>512</nova:swap>
        <nova:ephemeral>0</nova:ephemeral> <nova:vcpus>1</nova:vcpus>
        <nova:extraSpecs><nova:extraSpec name="hw:cpu_policy">dedicated</nova:extraSpec></nova:extraSpecs>
      </nova:flavor>
      <nova:owner><nova:user uuid="..."/><nova:project uuid="..."/></nova:owner>
      <nova:root type="image" uuid="..."/>
    </nova:instance>
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from xml.etree import ElementTree

from compute_agent.drivers.base import GuestFlavor
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole
from compute_agent.model import cpuset
from compute_agent.model.guest import GuestCell, PlacementConstraints
from compute_agent.model.guest_settings import (
    MAX_ANNOTATION,
    MAX_PRIORITY,
    MAX_VCPUS,
    EmulatorPolicy,
    GuestSettings,
    MemoryType,
    ThreadPolicy,
)
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

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}\Z")
_MAX_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class DomainDescription:
    """A domain.

    ``owner`` is the user its process runs as, a name or a number after ``+``; empty if libvirt does not say.
    ``problems`` are settings that cannot be used, in words; they have their defaults.
    """

    uuid: str
    name: str
    settings: GuestSettings
    owner: str = ""
    problems: tuple[str, ...] = ()


def _name(text: str) -> str:
    if not _NAME.match(text):
        raise ValueError("letters, digits, - and _, 64 at most")
    return text


def _annotation(text: str) -> str:
    if len(text) > MAX_ANNOTATION:
        raise ValueError(f"{MAX_ANNOTATION} characters at most")
    return text


def _priority(text: str) -> int:
    # int() would take digits of all scripts, and thousands of them.
    if not _NUMBER.match(text) or abs(int(text)) > MAX_PRIORITY:
        raise ValueError(f"a whole number within {MAX_PRIORITY} of 0")
    return int(text)


# Field of GuestSettings and what makes its value of a text, by element of our namespace and by extra spec.
_Reader = tuple[str, Callable[[str], Any]]

_OURS: Final[Mapping[str, _Reader]] = {
    "qos_class": ("qos_class", _name),
    "thread_policy": ("thread_policy", ThreadPolicy),
    "emulator_policy": ("emulator_policy", EmulatorPolicy),
    "resctrl": ("resctrl", _annotation),
    "blockio_class": ("blockio_class", _name),
    "memory_type": ("memory_type", MemoryType),
    "eviction_priority": ("priority", _priority),
}

# hw:cpu_policy is no setting: how many CPUs are dedicated is for the guest's allocation to say.
_NOVAS: Final[Mapping[str, _Reader]] = {
    "hw:cpu_thread_policy": ("thread_policy", ThreadPolicy),
    "hw:emulator_threads_policy": ("emulator_policy", EmulatorPolicy),
}


def describe(domain_xml: str) -> DomainDescription:
    """What the XML of a running domain says.

    The number of guest CPUs is that of the domain: those which are plugged in now.

    :raises ValueError: it is not the XML of a domain.
    """
    root = parse(domain_xml)
    uuid, name, vcpu = (root.find(tag) for tag in ("uuid", "name", "vcpu"))
    if uuid is None or name is None or vcpu is None or not uuid.text:
        raise ValueError("not the XML of a domain: uuid, name or vcpu is missing")
    values: dict[str, Any] = {"vcpus": min(int(vcpu.get("current") or vcpu.text or 1), MAX_VCPUS)}
    problems: list[str] = []
    for source, readers in ((_nova_specs(root), _NOVAS), (_our_settings(root), _OURS)):
        for key, text in source.items():
            if key not in readers:
                continue
            field, read = readers[key]
            try:
                values[field] = read(text)
            except ValueError as error:
                problems.append(f"{key} = {text[:_MAX_SHOWN]!r} cannot be used ({error})")
    settings = GuestSettings(**values)
    return DomainDescription(uuid.text.strip(), name.text or "", settings, _owner(root), tuple(problems))


def number(domain_xml: str) -> str | None:
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


def _nova_specs(root: ElementTree.Element) -> dict[str, str]:
    """The extra specs of the flavor; older Nova does not write them."""
    for namespace in NOVA_NAMESPACES:
        prefix = f"{{{namespace}}}"
        path = "/".join(f"{prefix}{tag}" for tag in ("instance", "flavor", "extraSpecs", "extraSpec"))
        specs = root.findall(f"metadata/{path}")
        if specs:
            return {spec.get("name", ""): (spec.text or "").strip() for spec in specs}
    return {}


def _owner(root: ElementTree.Element) -> str:
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
        return _number(flavor.findtext(f"{prefix}{name}"))

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
    dedicated = None if listed is None else _dedicated(specs, vcpus, own)
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
            amounts[match["name"]] += _number(amount)
        else:
            amounts[match["name"]] = _number(amount)
    return {name: amount for name, amount in amounts.items() if amount > 0 and name not in CPU_CLASSES}


def _dedicated(specs: Mapping[str, str], vcpus: int, own: frozenset[int] | None) -> int | None:
    """How many guest CPUs are dedicated; None if the mask that tells it cannot be read."""
    match specs.get("hw:cpu_policy"):
        case "dedicated":
            return vcpus
        case "mixed":
            return None if own is None else len(own)
        case _:
            return _number(specs.get("resources:PCPU"))


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


def _number(text: str | None) -> int:
    """A number that Placement could have as an amount; 0 for what is none."""
    text = (text or "").strip()
    if not text.isascii() or not text.isdecimal():
        return 0
    return min(int(text[:_MAX_DIGITS]), _MAX_AMOUNT)
