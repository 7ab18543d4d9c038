"""The pins, limits and block I/O settings in a domain's definition, and the agent's note about its values.

https://libvirt.org/formatdomain.html describes the XML format. The agent notes its own values in the metadata
of the definition, in a namespace of its own. The note identifies a pin by the number of the guest CPU, by the
I/O thread (i1), or by ``e`` for the emulator:

<agent:tuned xmlns:agent="urn:placement-compute:agent:1" shares="2048" pins="0=3 1=4 e=0-1"/>

The note identifies block I/O by item: ``weight``, ``dev:/dev/vda`` for a device of the host, ``disk:vda`` for
one of the domain's own disks. A value without a note belongs to another program, and the agent leaves it
unchanged. A note without the attribute ``pins`` was written by an earlier release, which noted no pins. All
pins in such a definition count as the agent's.

The agent respects pins of another program, unless they name all CPUs. The agent also respects CPU shares and
a quota of the whole domain if another program set them. The agent's own quotas are temporary and never in a
definition. The agent binds memory with mode ``restrictive``, the only mode that can be changed while the
guest runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from compute_agent.drivers.base import CpuLimits, CpuSettings
from compute_agent.drivers.cgroup import PERIOD
from compute_agent.drivers.libvirt.domain_metadata import parse
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole, wanted_cpus
from compute_agent.model import cpuset
from compute_agent.model.resource import DEFAULT_WEIGHT, BlockIo, DeviceRates

WEIGHT: Final = "weight"
_DEVICE: Final = "dev:"
_DISK: Final = "disk:"

_KEYS: Final = ("read_bytes_sec", "write_bytes_sec", "read_iops_sec", "write_iops_sec")

Item = int | DeviceRates


@dataclass(frozen=True, slots=True)
class DomainBlockIo:
    """The block I/O settings in the XML of a domain.

    An item is ``weight``, ``dev:PATH`` for a device of the host, or ``disk:TARGET`` for one of the domain's
    disks.

    :ivar weight: the weight of the whole domain; None means that the XML has no such element.
    :ivar rates: the rates by item, for devices with limits and for all disks.
    :ivar foreign: the items of disks that have kinds of limits that the agent never sets.
    """

    weight: int | None = None
    rates: Mapping[str, DeviceRates] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()

    @property
    def disk_items(self) -> list[str]:
        """The items of all disks of the domain, with or without limits."""
        return [item for item in self.rates if item.startswith(_DISK)]

    @property
    def values(self) -> dict[str, Item]:
        """The weight and the rates that are set, by item. Items without limits are left out."""
        found: dict[str, Item] = {item: rates for item, rates in self.rates.items() if rates}
        return found if self.weight is None else found | {WEIGHT: self.weight}

    def with_items(self, items: Mapping[str, Item]) -> DomainBlockIo:
        """A copy of the settings with new values for these items."""
        rates = {item: value for item, value in items.items() if isinstance(value, DeviceRates)}
        weight = items.get(WEIGHT, self.weight)
        return DomainBlockIo(
            weight if isinstance(weight, int) else None, {**self.rates, **rates}, self.foreign
        )


def parse_blockio(root: ElementTree.Element) -> DomainBlockIo:
    """The block I/O settings in the XML of a domain.

    :param root: the root element of the XML.
    :raises ValueError: a number cannot be read.
    """
    weight = root.findtext("blkiotune/weight")
    rates = {
        f"{_DEVICE}{one.findtext('path')}": _parse_rates(one) for one in root.iterfind("blkiotune/device")
    }
    foreign = set()
    for disk in root.iterfind("devices/disk"):
        target, tune = disk.find("target"), disk.find("iotune")
        item = f"{_DISK}{'' if target is None else target.get('dev', '')}"
        rates[item] = DeviceRates() if tune is None else _parse_rates(tune)
        # libvirt refuses separate rates for reads and writes together with total rates. Limits of these other
        # kinds belong to another program.
        if tune is not None and any(it.tag not in _KEYS and (it.text or "0") != "0" for it in tune):
            foreign.add(item)
    return DomainBlockIo(int(weight) if weight else None, rates, frozenset(foreign))


def items_to_set(has: DomainBlockIo, wanted: BlockIo | None, own: Collection[str]) -> dict[str, Item]:
    """The items of block I/O to set on a domain so that its settings match ``wanted``.

    :param has: the present settings of the domain.
    :param wanted: the settings that the domain should have; None means that it should have none of the
        agent's values.
    :param own: the items that the agent has already written.
    """
    goal: dict[str, Item] = {}
    if wanted is not None and wanted.rates:
        goal = {f"{_DEVICE}{path}": wanted.rates for path in device_paths(wanted.devices)}
        if wanted.own_disks:
            goal |= dict.fromkeys(has.disk_items, wanted.rates)
    found: dict[str, Item] = {}
    for item in sorted({*goal, *(item for item in own if item in has.rates)} - has.foreign):
        present, target = has.rates.get(item, DeviceRates()), goal.get(item, DeviceRates())
        # A present value that the agent did not write belongs to another program.
        if present != target and (item in own or not present):
            found[item] = target
    # A domain without a weight has the kernel's default. So nothing is written if the default is wanted.
    weight = None if wanted is None else wanted.weight
    present_weight = DEFAULT_WEIGHT if has.weight is None else has.weight
    target_weight = DEFAULT_WEIGHT if weight is None else weight
    if present_weight != target_weight and (WEIGHT in own or has.weight is None):
        found[WEIGHT] = target_weight
    return found


def device_paths(numbers: Iterable[str]) -> list[str]:
    """The files in /dev of the devices with these numbers (``MAJOR:MINOR``).

    Libvirt identifies devices by files.

    Devices that were unplugged are left out.
    """
    links = (os.path.realpath(f"/sys/dev/block/{number}") for number in sorted(numbers))
    # The kernel removes the folder of an unplugged device.
    return [f"/dev/{os.path.basename(link)}" for link in links if os.path.isdir(link)]


def set_item(domain: Any, item: str, value: Item, flag: int) -> None:
    """Set one item of block I/O on a domain.

    :param domain: libvirt's object of the domain.
    :param item: ``weight``, ``dev:PATH`` or ``disk:TARGET``.
    :param value: the weight, or the rates of the device or disk.
    :param flag: VIR_DOMAIN_AFFECT_LIVE or VIR_DOMAIN_AFFECT_CONFIG.
    :raises libvirtError: libvirt refuses the value.
    """
    if isinstance(value, int):
        domain.setBlkioParameters({WEIGHT: value}, flag)
        return
    # 0 is libvirt's value for no limit.
    limits = {key: amount or 0 for key, amount in zip(_KEYS, value.all_rates, strict=True)}
    if item.startswith(_DISK):
        domain.setBlockIoTune(item.removeprefix(_DISK), limits, flag)
        return
    path = item.removeprefix(_DEVICE)
    domain.setBlkioParameters({f"device_{key}": f"{path},{amount}" for key, amount in limits.items()}, flag)


def _parse_rates(element: ElementTree.Element) -> DeviceRates:
    # libvirt writes 0 where there is no limit.
    return DeviceRates(*(int(element.findtext(key) or 0) or None for key in _KEYS))


NAMESPACE: Final = "urn:placement-compute:agent:1"
PREFIX: Final = "agent"

RESTRICTIVE: Final = "restrictive"

SOFT_LIMIT: Final = "soft_limit"
UNLIMITED_KIB: Final = 9007199254740991
"""The value in KiB that libvirt uses for "no limit" (VIR_DOMAIN_MEMORY_PARAM_UNLIMITED)."""

# The agent does not trust its note: every user with the right to define domains can write such a note. int()
# would accept the digits of all scripts, and raises an error for thousands of digits.
_SHARES: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
# Maximum number of noted shares that are read. The agent notes a few shares in the life of a domain, so
# another program wrote a longer list.
_MAX_NOTED: Final = 64
_PIN: Final = re.compile(r"(e|i?[0-9]{1,5})=([0-9,-]{1,4096})", re.ASCII)
# Maximum number of pins of a note that are read; no domain has more threads.
_MAX_PINS: Final = 16384

Pin = tuple[ThreadRole, frozenset[int]]

Pins = Mapping[ThreadRole, frozenset[int] | None]
"""The CPUs of each thread of a domain, by the role of the thread. If a role has None, its threads may use all
CPUs of the host.
"""


@dataclass(frozen=True, slots=True)
class MemoryBinding:
    """The element ``<numatune><memory>`` of a domain: its NUMA nodes and its mode.

    :ivar mode: ``strict``, ``preferred``, ``interleave`` or ``restrictive``; empty if the memory is not
        bound.
    """

    mode: str = ""
    nodes: frozenset[int] = frozenset()

    @property
    def is_foreign(self) -> bool:
        """Whether another program bound the memory; the agent binds with mode ``restrictive`` only."""
        return self.mode not in ("", RESTRICTIVE)


@dataclass(frozen=True, slots=True)
class DomainDefinition:
    """The settings in the definition of a domain, which take effect at its next start.

    :ivar persistent: whether the domain has a definition. Without a definition, the object has the settings
        of the running domain.
    :ivar shares: the CPU shares (``<cputune><shares>``); None means that the definition has no such value.
    :ivar noted: the shares that the agent wrote, as its note says.
    :ivar quota: the quota of the whole domain in cores; None means no limit.
    :ivar binding: the NUMA nodes of the memory.
    :ivar pins: the CPUs of each guest CPU, each I/O thread and the emulator.
    :ivar pinned: the roles that the definition pins. Threads of all other roles have the CPUs of ``<vcpu
        cpuset>``.
    :ivar own: the pins that the agent wrote, as its note says; None means that all pins count as the agent's.
    :ivar blockio: the settings of block I/O.
    :ivar own_items: the items of block I/O, and ``soft_limit``, that the agent wrote.
    :ivar soft_limit: the memory in KiB above which the kernel slows the domain down; None means no limit.
    """

    persistent: bool = False
    shares: int | None = None
    noted: frozenset[int] = frozenset()
    quota: float | None = None
    binding: MemoryBinding = MemoryBinding()
    pins: Pins = field(default_factory=dict)
    pinned: frozenset[ThreadRole] = frozenset()
    own: frozenset[Pin] | None = frozenset()
    blockio: DomainBlockIo = field(default_factory=DomainBlockIo)
    own_items: frozenset[str] = frozenset()
    soft_limit: int | None = None

    @property
    def own_pins(self) -> frozenset[Pin]:
        """The pins that the agent wrote into the definition, without pins that have changed since."""
        return frozenset(
            (role, cpus)
            for role, cpus in self.pins.items()
            if cpus is not None and (self.own is None or (role, cpus) in self.own)
        )

    def demanded_pins(self, host: frozenset[int]) -> dict[ThreadRole, frozenset[int]]:
        """The pins of other programs, by role, except pins to all CPUs of the ``host``.

        ``<vcpu cpuset>`` is not a pin, but the default of threads without a pin.
        """
        own = self.own_pins
        return {
            role: cpus
            for role, cpus in self.pins.items()
            if role in self.pinned and cpus and not cpus >= host and (role, cpus) not in own
        }

    @property
    def has_foreign_shares(self) -> bool:
        """Whether another program wrote the shares of the domain."""
        return self.shares is not None and self.shares not in self.noted

    def limits_within(self, wanted: CpuLimits) -> CpuLimits:
        """The agent's ``wanted`` limits, restricted by limits that another program wrote into the definition.

        Foreign shares take precedence over the agent's weight. If both the agent and another program have a
        quota, the lower one applies.
        """
        quotas = [quota for quota in (wanted.quota, self.quota) if quota is not None]
        weight = None if self.has_foreign_shares else wanted.weight
        # Shares of another program state the domain's weight against other guests. An idle group has no
        # weight, so such a domain does not become idle.
        idle = wanted.idle and not self.has_foreign_shares
        return CpuLimits(weight, min(quotas, default=None), idle, wanted.burst)

    def other_pins(self, settings: CpuSettings, host: frozenset[int]) -> dict[ThreadRole, frozenset[int]]:
        """The pins to write, by role, so that the definition matches ``settings``.

        Pins that another program demands stay, because the agent chose the CPUs in ``settings`` within these
        pins.

        :param host: all CPUs of the host. Other CPUs are ignored.
        """
        demanded = self.demanded_pins(host)
        return {
            role: wanted
            for role, cpus in self.pins.items()
            if role not in demanded
            and (wanted := wanted_cpus(role, settings) & host) != (host if cpus is None else cpus)
        }

    def changed_fields(self, other: DomainDefinition) -> tuple[str, ...]:
        """The names of the fields in which two definitions differ."""
        names = (one.name for one in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


def parse_definition(inactive_xml: str, persistent: bool) -> DomainDefinition:
    """The settings in the inactive XML of a domain.

    :param persistent: whether the domain has a definition.
    :raises ValueError: the text is not XML, or a value cannot be read.
    """
    root = parse(inactive_xml)
    note = root.find(f"metadata/{{{NAMESPACE}}}tuned")
    noted = "" if note is None else note.get("shares", "")
    # libvirt shows shares of 0 after shares were removed from a definition.
    shares = int(root.findtext("cputune/shares") or 0) or None
    quota, period = (int(root.findtext(f"cputune/global_{name}") or 0) for name in ("quota", "period"))
    pins, pinned = _read_pins(root) if persistent else ({}, frozenset())
    # For a domain without a definition the XML shows the running domain, and the quota there is perhaps the
    # agent's own temporary quota. libvirt writes -1 or 0 where there is no quota.
    limited = persistent and quota > 0
    return DomainDefinition(
        persistent,
        shares,
        frozenset(
            int(number) for number in noted.split(",", _MAX_NOTED)[:_MAX_NOTED] if _SHARES.fullmatch(number)
        ),
        quota / (period or PERIOD) if limited else None,
        _read_binding(root),
        pins,
        pinned,
        frozenset() if note is None else _noted_pins(note),
        parse_blockio(root),
        frozenset() if note is None else _noted_items(note),
        _soft_limit(root),
    )


def parse_live(domain_xml: str) -> tuple[DomainBlockIo, int | None]:
    """The block I/O settings in the XML of a running domain, and its soft limit of memory in KiB.

    The soft limit is None if the domain has no soft limit.

    :raises ValueError: the text is not XML, or a number cannot be read.
    """
    root = parse(domain_xml)
    return parse_blockio(root), _soft_limit(root)


def parse_binding(domain_xml: str) -> MemoryBinding:
    """The binding of memory to NUMA nodes in the XML of a domain.

    :raises ValueError: the text is not XML.
    """
    return _read_binding(parse(domain_xml))


def note_element(shares: frozenset[int], pins: Iterable[Pin] = (), items: Iterable[str] = ()) -> str:
    """The note about the values that the agent wrote, as an XML element for virDomainSetMetadata.

    :param items: items of block I/O, and :data:`SOFT_LIMIT`.
    """
    # The pins are sorted, so that equal pins give equal texts; another text would look like a new definition.
    written = sorted(f"{_key(role)}={cpuset.format(cpus)}" for role, cpus in pins)
    noted = f"shares='{','.join(map(str, sorted(shares)))}' pins='{' '.join(written)}'"
    listed = quoteattr(" ".join(sorted(items)))
    return f"<tuned {noted}/>" if listed == '""' else f"<tuned {noted} items={listed}/>"


def _key(role: ThreadRole) -> str:
    if role.vcpu is not None:
        return str(role.vcpu)
    return "e" if role.iothread is None else f"i{role.iothread}"


def _noted_pins(note: ElementTree.Element) -> frozenset[Pin] | None:
    """The pins in a note, without unreadable pins; None if the note has no attribute ``pins``."""
    if (text := note.get("pins")) is None:
        return None
    found = set()
    for piece in text.split(" ", _MAX_PINS)[:_MAX_PINS]:
        if (match := _PIN.fullmatch(piece)) is None:
            continue
        with contextlib.suppress(cpuset.BadCpuSet):
            found.add((_parse_role(match[1]), cpuset.parse(match[2])))
    return frozenset(found)


def _noted_items(note: ElementTree.Element) -> frozenset[str]:
    return frozenset(filter(None, note.get("items", "").split(" ", _MAX_PINS)[:_MAX_PINS]))


def _parse_role(key: str) -> ThreadRole:
    if key == "e":
        return EMULATOR
    return ThreadRole(iothread=int(key[1:])) if key.startswith("i") else ThreadRole(vcpu=int(key))


def _soft_limit(root: ElementTree.Element) -> int | None:
    """The soft limit of memory in the XML of a domain, in KiB; None if the XML has no soft limit."""
    limit = int(root.findtext("memtune/soft_limit") or UNLIMITED_KIB)
    return None if limit >= UNLIMITED_KIB else limit


def _read_binding(root: ElementTree.Element) -> MemoryBinding:
    memory = root.find("numatune/memory")
    if memory is None:
        return MemoryBinding()
    # ``strict`` is libvirt's default for memory (formatdomain.html, NUMA Node Tuning).
    return MemoryBinding(memory.get("mode", "strict"), cpuset.parse(memory.get("nodeset", "")))


def _read_pins(root: ElementTree.Element) -> tuple[Pins, frozenset[ThreadRole]]:
    """The CPUs of each role, and the set of the roles that the XML pins.

    A role without a pin has the CPUs of ``<vcpu cpuset>``.
    """
    vcpu, tune = root.find("vcpu"), root.find("cputune")
    if vcpu is None:
        return {}, frozenset()
    default = _cpus(vcpu)
    roles = [ThreadRole(vcpu=number) for number in range(int(vcpu.text or 1))]
    roles += [ThreadRole(iothread=number) for number in _iothread_numbers(root)]
    pins: dict[ThreadRole, frozenset[int] | None] = dict.fromkeys([*roles, EMULATOR], default)
    pinned: set[ThreadRole] = set()
    for pin in () if tune is None else tune:
        match pin.tag:
            case "vcpupin":
                # A pin without a number gets the number -1. No guest CPU has this number, so the pin has no
                # effect.
                role = ThreadRole(vcpu=int(pin.get("vcpu", -1)))
            case "iothreadpin":
                role = ThreadRole(iothread=int(pin.get("iothread", 0)))
            case "emulatorpin":
                role = EMULATOR
            case _:
                continue
        # A pin of any other role is left out: the domain cannot have such a thread, so the pin has no effect.
        if role in pins:
            pins[role] = _cpus(pin)
            pinned.add(role)
    return pins, frozenset(pinned)


def _iothread_numbers(root: ElementTree.Element) -> list[int]:
    """The numbers of the I/O threads; libvirt gives the lowest free numbers to threads without an id."""
    numbers = [int(thread.get("id", 0)) for thread in root.iterfind("iothreadids/iothread")]
    missing = int(root.findtext("iothreads") or 0) - len(numbers)
    free = (number for number in itertools.count(1) if number not in numbers)
    return [*numbers, *itertools.islice(free, max(missing, 0))]


def _cpus(element: ElementTree.Element) -> frozenset[int] | None:
    text = element.get("cpuset")
    return cpuset.parse(text) if text else None
