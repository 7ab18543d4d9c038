"""Block I/O of a domain: ``<blkiotune>`` on devices of the host, ``<iotune>`` of its own disks.

The format is that of https://libvirt.org/formatdomain.html. What the agent sets is noted in the metadata of
the definition, item by item: ``weight``, ``dev:/dev/vda`` for a device of the host, ``disk:vda`` for one of
the domain's own. An item that has a value and is not noted is somebody else's, and stays.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from xml.etree import ElementTree

from compute_agent.model.resource import DEFAULT_WEIGHT, BlockIo, DeviceRates

WEIGHT: Final = "weight"
_DEVICE: Final = "dev:"
_DISK: Final = "disk:"

_KEYS: Final = ("read_bytes_sec", "write_bytes_sec", "read_iops_sec", "write_iops_sec")

Item = int | DeviceRates


@dataclass(frozen=True, slots=True)
class DomainBlockIo:
    """What the XML of a domain says.

    ``rates`` are those of devices and of all disks, by item. ``foreign`` are disks with limits of a kind that
    the agent never sets.
    """

    weight: int | None = None
    rates: Mapping[str, DeviceRates] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()

    @property
    def disks(self) -> list[str]:
        """The items of the domain's own disks."""
        return [item for item in self.rates if item.startswith(_DISK)]

    @property
    def values(self) -> dict[str, Item]:
        """The items that have one."""
        found: dict[str, Item] = {item: rates for item, rates in self.rates.items() if rates}
        return found if self.weight is None else found | {WEIGHT: self.weight}

    def with_items(self, items: Mapping[str, Item]) -> DomainBlockIo:
        """The same when these items are set."""
        rates = {item: value for item, value in items.items() if isinstance(value, DeviceRates)}
        weight = items.get(WEIGHT, self.weight)
        return DomainBlockIo(
            weight if isinstance(weight, int) else None, {**self.rates, **rates}, self.foreign
        )


def parse_blockio(root: ElementTree.Element) -> DomainBlockIo:
    """What the XML of a domain says of block I/O.

    :raises ValueError: a number is none.
    """
    weight = root.findtext("blkiotune/weight")
    rates = {f"{_DEVICE}{one.findtext('path')}": _rates(one) for one in root.iterfind("blkiotune/device")}
    foreign = set()
    for disk in root.iterfind("devices/disk"):
        target, tune = disk.find("target"), disk.find("iotune")
        item = f"{_DISK}{'' if target is None else target.get('dev', '')}"
        rates[item] = DeviceRates() if tune is None else _rates(tune)
        if tune is not None and any(it.tag not in _KEYS and (it.text or "0") != "0" for it in tune):
            foreign.add(item)
    return DomainBlockIo(int(weight) if weight else None, rates, frozenset(foreign))


def todo(has: DomainBlockIo, wanted: BlockIo | None, own: Collection[str]) -> dict[str, Item]:
    """The items to set, of a domain that ``has`` these, of which those in ``own`` are the agent's."""
    goal: dict[str, Item] = {}
    if wanted is not None and wanted.rates:
        goal = {f"{_DEVICE}{path}": wanted.rates for path in device_paths(wanted.devices)}
        if wanted.own_disks:
            goal |= dict.fromkeys(has.disks, wanted.rates)
    found: dict[str, Item] = {}
    for item in sorted({*goal, *(item for item in own if item in has.rates)} - has.foreign):
        present, target = has.rates.get(item, DeviceRates()), goal.get(item, DeviceRates())
        if present != target and (item in own or not present):
            found[item] = target
    weight = None if wanted is None else wanted.weight
    present_weight = DEFAULT_WEIGHT if has.weight is None else has.weight
    target_weight = DEFAULT_WEIGHT if weight is None else weight
    if present_weight != target_weight and (WEIGHT in own or has.weight is None):
        found[WEIGHT] = target_weight
    return found


def device_paths(numbers: Iterable[str]) -> list[str]:
    """The files in /dev of devices by their numbers, as ``MAJOR:MINOR``."""
    links = (os.path.realpath(f"/sys/dev/block/{number}") for number in sorted(numbers))
    return [f"/dev/{os.path.basename(link)}" for link in links if os.path.isdir(link)]


def set_item(domain: Any, item: str, value: Item, flag: int) -> None:
    """Set one item on libvirt's ``domain``, of which ``flag`` says whether it runs or is defined.

    :raises libvirtError:
    """
    if isinstance(value, int):
        domain.setBlkioParameters({WEIGHT: value}, flag)
        return
    limits = {key: amount or 0 for key, amount in zip(_KEYS, value.amounts, strict=True)}
    if item.startswith(_DISK):
        domain.setBlockIoTune(item.removeprefix(_DISK), limits, flag)
        return
    path = item.removeprefix(_DEVICE)
    domain.setBlkioParameters({f"device_{key}": f"{path},{amount}" for key, amount in limits.items()}, flag)


def _rates(element: ElementTree.Element) -> DeviceRates:
    return DeviceRates(*(int(element.findtext(key) or 0) or None for key in _KEYS))
