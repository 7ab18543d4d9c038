"""What a domain's XML says about the guest (https://libvirt.org/formatdomain.html), as plain values.

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
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

from compute_agent.drivers.libvirt.document import parse
from compute_agent.model.guest import (
    MAX_ANNOTATION,
    MAX_PRIORITY,
    MAX_VCPUS,
    EmulatorPolicy,
    GuestSettings,
    MemoryType,
    ThreadPolicy,
)

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
