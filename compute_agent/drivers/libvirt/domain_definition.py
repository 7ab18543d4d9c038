"""A domain's definition: its pins, CPU and memory limits and block I/O, and which of these the agent wrote.

The format is that of https://libvirt.org/formatdomain.html. The agent notes what it writes in the metadata of
the definition, in a namespace of its own: pins by guest CPU, I/O thread (i1) or emulator (e),

<agent:tuned xmlns:agent="urn:placement-compute:agent:1" shares="2048" pins="0=3 1=4 e=0-1"/>

and block I/O by item: ``weight``, ``dev:/dev/vda`` for a device of the host, ``disk:vda`` for one of the
domain's own. A value without a note belongs to somebody else and stays. (A note without pins is of an earlier
release, which noted none: all pins beside it are the agent's.)

Pins of somebody else are demands, unless they are to all CPUs. Shares and a quota of the whole domain are
somebody else's wish and are respected; the agent's own quotas are temporary and never in a definition. Memory
that the agent binds has mode ``restrictive``, because no other mode can be changed while the guest runs.
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
    limits = {key: amount or 0 for key, amount in zip(_KEYS, value.all_rates, strict=True)}
    if item.startswith(_DISK):
        domain.setBlockIoTune(item.removeprefix(_DISK), limits, flag)
        return
    path = item.removeprefix(_DEVICE)
    domain.setBlkioParameters({f"device_{key}": f"{path},{amount}" for key, amount in limits.items()}, flag)


def _rates(element: ElementTree.Element) -> DeviceRates:
    return DeviceRates(*(int(element.findtext(key) or 0) or None for key in _KEYS))


NAMESPACE: Final = "urn:placement-compute:agent:1"
PREFIX: Final = "agent"

RESTRICTIVE: Final = "restrictive"

SOFT_LIMIT: Final = "soft_limit"
UNLIMITED_KIB: Final = 9007199254740991
"""What libvirt calls VIR_DOMAIN_MEMORY_PARAM_UNLIMITED."""

# What is noted anybody may have written: int() would take digits of all scripts, and fails on thousands.
_SHARES: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_MAX_NOTED: Final = 64
_PIN: Final = re.compile(r"(e|i?[0-9]{1,5})=([0-9,-]{1,4096})", re.ASCII)
_MAX_PINS: Final = 16384

Pin = tuple[ThreadRole, frozenset[int]]

Pins = Mapping[ThreadRole, frozenset[int] | None]
"""The CPUs of what a domain's threads do; None: those of the whole host."""


@dataclass(frozen=True, slots=True)
class MemoryBinding:
    """The element ``<numatune><memory>``: NUMA nodes, and how memory is bound to them."""

    mode: str = ""
    nodes: frozenset[int] = frozenset()

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else than the agent bound the memory."""
        return self.mode not in ("", RESTRICTIVE)


@dataclass(frozen=True, slots=True)
class DomainDefinition:
    """What a domain starts with.

    ``shares`` None: nothing is said; ``noted`` are those of the agent. ``pins`` has each guest CPU, each I/O
    thread and the emulator; ``pinned`` are those of them that have a pin
    of their own, ``own`` are the agent's (None: all are).

    ``blockio`` is what is said of block I/O, ``soft_limit`` the KiB of memory above which the domain is
    slowed down (None: never); ``own_items`` are those of these that are the agent's.

    ``quota`` is that of the whole domain, in cores; None: no limit. A domain that is not ``persistent`` has
    no definition, and this is how it is tuned now.
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
        """The pins that are there and are the agent's."""
        return frozenset(
            (role, cpus)
            for role, cpus in self.pins.items()
            if cpus is not None and (self.own is None or (role, cpus) in self.own)
        )

    def demanded_pins(self, host: frozenset[int]) -> dict[ThreadRole, frozenset[int]]:
        """The pins that somebody else wrote, but those to all CPUs of the ``host``.

        ``<vcpu cpuset>`` is none: it says where what is not pinned begins.
        """
        own = self.own_pins
        return {
            role: cpus
            for role, cpus in self.pins.items()
            if role in self.pinned and cpus and not cpus >= host and (role, cpus) not in own
        }

    @property
    def has_foreign_shares(self) -> bool:
        """Whether somebody else than the agent said how many shares the domain has."""
        return self.shares is not None and self.shares not in self.noted

    def within(self, wanted: CpuLimits) -> CpuLimits:
        """The limits that the domain should have when the agent wants these."""
        quotas = [quota for quota in (wanted.quota, self.quota) if quota is not None]
        return CpuLimits(None if self.has_foreign_shares else wanted.weight, min(quotas, default=None))

    def other_pins(self, settings: CpuSettings, host: frozenset[int]) -> dict[ThreadRole, frozenset[int]]:
        """Where the pins that ``settings`` want elsewhere should be, of the CPUs that the ``host`` has.

        Demands stay as they are: where the guest runs is within them.
        """
        demanded = self.demanded_pins(host)
        return {
            role: wanted
            for role, cpus in self.pins.items()
            if role not in demanded
            and (wanted := wanted_cpus(role, settings) & host) != (host if cpus is None else cpus)
        }

    def changes(self, other: DomainDefinition) -> tuple[str, ...]:
        """The names of what another definition has otherwise."""
        names = (one.name for one in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


def parse_definition(inactive_xml: str, persistent: bool) -> DomainDefinition:
    """The definition in the inactive XML of a domain.

    :raises ValueError: that is not XML.
    """
    root = parse(inactive_xml)
    note = root.find(f"metadata/{{{NAMESPACE}}}tuned")
    noted = "" if note is None else note.get("shares", "")
    # Shares of 0 are none: so does libvirt show definitions of which they were taken.
    shares = int(root.findtext("cputune/shares") or 0) or None
    quota, period = (int(root.findtext(f"cputune/global_{name}") or 0) for name in ("quota", "period"))
    pins, pinned = _pins(root) if persistent else ({}, frozenset())
    # One that is not in a definition may be the agent's.
    limited = persistent and quota > 0
    return DomainDefinition(
        persistent,
        shares,
        frozenset(
            int(number) for number in noted.split(",", _MAX_NOTED)[:_MAX_NOTED] if _SHARES.fullmatch(number)
        ),
        quota / (period or PERIOD) if limited else None,
        _binding(root),
        pins,
        pinned,
        frozenset() if note is None else _noted_pins(note),
        parse_blockio(root),
        frozenset() if note is None else _noted_items(note),
        _soft_limit(root),
    )


def parse_live(domain_xml: str) -> tuple[DomainBlockIo, int | None]:
    """What the XML of a domain that runs says of block I/O, and its soft limit of memory in KiB.

    :raises ValueError: this is not XML.
    """
    root = parse(domain_xml)
    return parse_blockio(root), _soft_limit(root)


def parse_binding(domain_xml: str) -> MemoryBinding:
    """How the memory of a domain is bound.

    :raises ValueError: this is not XML.
    """
    return _binding(parse(domain_xml))


def note(shares: frozenset[int], pins: Iterable[Pin] = (), items: Iterable[str] = ()) -> str:
    """The element that notes what is the agent's, as virDomainSetMetadata wants it.

    ``items`` are those of block I/O, and :data:`SOFT_LIMIT`.
    """
    written = sorted(f"{_key(role)}={cpuset.format(cpus)}" for role, cpus in pins)
    noted = f"shares='{','.join(map(str, sorted(shares)))}' pins='{' '.join(written)}'"
    listed = quoteattr(" ".join(sorted(items)))
    return f"<tuned {noted}/>" if listed == '""' else f"<tuned {noted} items={listed}/>"


def _key(role: ThreadRole) -> str:
    if role.vcpu is not None:
        return str(role.vcpu)
    return "e" if role.iothread is None else f"i{role.iothread}"


def _noted_pins(note: ElementTree.Element) -> frozenset[Pin] | None:
    """What a note says of pins; what of it cannot be read is nobody's. None if it says nothing of them."""
    if (text := note.get("pins")) is None:
        return None
    found = set()
    for piece in text.split(" ", _MAX_PINS)[:_MAX_PINS]:
        if (match := _PIN.fullmatch(piece)) is None:
            continue
        with contextlib.suppress(cpuset.BadCpuSet):
            found.add((_role(match[1]), cpuset.parse(match[2])))
    return frozenset(found)


def _noted_items(note: ElementTree.Element) -> frozenset[str]:
    return frozenset(filter(None, note.get("items", "").split(" ", _MAX_PINS)[:_MAX_PINS]))


def _role(key: str) -> ThreadRole:
    if key == "e":
        return EMULATOR
    return ThreadRole(iothread=int(key[1:])) if key.startswith("i") else ThreadRole(vcpu=int(key))


def _soft_limit(root: ElementTree.Element) -> int | None:
    """In KiB, as libvirt writes it; None for what is no limit."""
    limit = int(root.findtext("memtune/soft_limit") or UNLIMITED_KIB)
    return None if limit >= UNLIMITED_KIB else limit


def _binding(root: ElementTree.Element) -> MemoryBinding:
    memory = root.find("numatune/memory")
    if memory is None:
        return MemoryBinding()
    return MemoryBinding(memory.get("mode", "strict"), cpuset.parse(memory.get("nodeset", "")))


def _pins(root: ElementTree.Element) -> tuple[Pins, frozenset[ThreadRole]]:
    """The pins, and what has one of its own. All else runs where ``<vcpu cpuset>`` says."""
    vcpu, tune = root.find("vcpu"), root.find("cputune")
    if vcpu is None:
        return {}, frozenset()
    default = _cpus(vcpu)
    roles = [ThreadRole(vcpu=number) for number in range(int(vcpu.text or 1))]
    roles += [ThreadRole(iothread=number) for number in _iothreads(root)]
    pins: dict[ThreadRole, frozenset[int] | None] = dict.fromkeys([*roles, EMULATOR], default)
    pinned: set[ThreadRole] = set()
    for pin in () if tune is None else tune:
        match pin.tag:
            case "vcpupin":
                role = ThreadRole(vcpu=int(pin.get("vcpu", -1)))
            case "iothreadpin":
                role = ThreadRole(iothread=int(pin.get("iothread", 0)))
            case "emulatorpin":
                role = EMULATOR
            case _:
                continue
        if role in pins:
            pins[role] = _cpus(pin)
            pinned.add(role)
    return pins, frozenset(pinned)


def _iothreads(root: ElementTree.Element) -> list[int]:
    """The numbers of the I/O threads; those that nobody chose are the lowest that are free."""
    numbers = [int(thread.get("id", 0)) for thread in root.iterfind("iothreadids/iothread")]
    missing = int(root.findtext("iothreads") or 0) - len(numbers)
    free = (number for number in itertools.count(1) if number not in numbers)
    return [*numbers, *itertools.islice(free, max(missing, 0))]


def _cpus(element: ElementTree.Element) -> frozenset[int] | None:
    text = element.get("cpuset")
    return cpuset.parse(text) if text else None
