"""The order that Nova wrote into a domain's ``<metadata>``: its flavor, its owner, and what it boots from.

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

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final
from xml.etree import ElementTree

from compute_agent.drivers.flavor import GuestFlavor
from compute_agent.drivers.libvirt.document import parse
from compute_agent.drivers.libvirt.metadata import NOVA_NAMESPACES
from compute_agent.model import cpuset
from compute_agent.model.resource import CPU_CLASSES

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
    dedicated = None if listed is None else _dedicated(specs, number("vcpus"))
    return GuestFlavor(_with_specs(resources, specs), dedicated, owner("project"), owner("user"))


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


def _dedicated(specs: Mapping[str, str], vcpus: int) -> int | None:
    """How many guest CPUs are dedicated; None if the mask that tells it cannot be read."""
    match specs.get("hw:cpu_policy"):
        case "dedicated":
            return vcpus
        case "mixed":
            mask = specs.get("hw:cpu_dedicated_mask", "")
            everything = f"0-{vcpus - 1}"
            try:
                cpus = cpuset.parse(f"{everything},{mask}" if mask.startswith("^") else mask)
                return len(cpus & cpuset.parse(everything))
            except ValueError:
                return None
        case _:
            return _number(specs.get("resources:PCPU"))


def _number(text: str | None) -> int:
    """A number that Placement could have as an amount; 0 for what is none."""
    text = (text or "").strip()
    if not text.isascii() or not text.isdecimal():
        return 0
    return min(int(text[:_MAX_DIGITS]), _MAX_AMOUNT)
