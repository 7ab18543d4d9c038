"""Classes of guests, with ranks and shares of resources, and the annotation of a single guest.

The annotation is Koordinator's ``node.koordinator.sh/resctrl``. Koordinator's design document spells the keys
``LLC``, ``MB`` and ``cacheid``, its API ``llc``, ``mb`` and ``cacheID``. The agent accepts either spelling,
but not the same key twice. Koordinator's API omits numbers that are 0 (Go's ``omitempty``), so that an
override without ``cacheid`` is for cache 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final, TypeVar

from oslo_config import cfg

from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.qos import QOS_CLASS, family_sections
from compute_agent.model.guest_settings import (
    BEST_EFFORT,
    LATENCY_SENSITIVE,
    LATENCY_SENSITIVE_RESERVED,
    IsolationLevel,
    class_section,
)
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import BEST_EFFORT_WEIGHT, DEFAULT_SHARES, CoreScope, CpuShare, MemoryShare
from compute_agent.resctrl.bandwidth import BandwidthCap, BandwidthRate
from compute_agent.resctrl.share_spec import (
    BadShareError,
    ShareSpec,
    WayRange,
    check_percent,
    check_rate,
    parse_per_cache,
    parse_percent,
    parse_range,
    parse_rate,
)

T = TypeVar("T")


DEFAULT_CLASSES: Final[Mapping[str, ShareSpec]] = {
    LATENCY_SENSITIVE_RESERVED: ShareSpec(WayRange(0, 100), mb=100),
    LATENCY_SENSITIVE: ShareSpec(WayRange(0, 100), mb=100),
    BEST_EFFORT: ShareSpec(WayRange(0, 30), mb=100),
}
"""The shares of caches and bandwidth of the classes that exist without configuration."""

# The ranks have gaps, so that an operator's classes fit between them.
_RANKS: Final = {BEST_EFFORT: 0, LATENCY_SENSITIVE: 10, LATENCY_SENSITIVE_RESERVED: 20}


@dataclass(frozen=True, slots=True)
class QosClass:
    """A class of guests.

    - ``rank``: guests of a class with a lower rank are limited and evicted first.
    - ``share`` is the share of caches and memory bandwidth that the guests get.
    - ``memory`` has the limits and the protection of the guests' memory.
    - ``cpu_class`` is the name of the CPU class of the guests' dedicated CPUs; empty if the class names none.
    - ``isolation`` is the isolation level of the guests' dedicated CPUs.
    - ``cpu`` has the weight and the scheduling of CPU time.
    """

    name: str
    rank: int
    share: ShareSpec = field(default_factory=ShareSpec)
    memory: MemoryShare = field(default_factory=MemoryShare)
    cpu_class: str = ""
    isolation: IsolationLevel = IsolationLevel.UNSET
    cpu: CpuShare = field(default_factory=CpuShare)


@dataclass(frozen=True, slots=True)
class QosClasses:
    """Classes of guests by name. Throttling does not act on guests with a rank above ``highest``."""

    classes: Mapping[str, QosClass]
    highest: int

    @property
    def share_specs(self) -> dict[str, ShareSpec]:
        """The shares of caches and bandwidth of all classes."""
        return {name: one.share for name, one in self.classes.items()}

    @property
    def best_effort(self) -> frozenset[str]:
        """The names of the best-effort classes: ``BE``, and all classes of the same or a lower rank."""
        # BE exists in each configuration.
        highest = self.classes[BEST_EFFORT].rank
        return frozenset(name for name, one in self.classes.items() if one.rank <= highest)

    def rank_of(self, name: str) -> int:
        """The rank of a class. A class without a section ranks above all other classes."""
        # A class can be removed while guests of it run. These guests are protected until an operator decides
        # otherwise.
        known = self.classes.get(name)
        return max(one.rank for one in self.classes.values()) + 1 if known is None else known.rank

    def is_protected(self, name: str, dedicated: bool) -> bool:
        """Whether throttling must not act on a guest: it has dedicated CPUs, or its class has a high rank."""
        return dedicated or self.rank_of(name) > self.highest


def parse_classes(conf: cfg.ConfigOpts) -> QosClasses:
    """Read the sections ``[qos_class:NAME]``, together with the default classes."""
    # The default classes come first, so that they exist without any section.
    classes = {
        name: QosClass(name, _RANKS[name], share, DEFAULT_SHARES.get(name, MemoryShare()))
        for name, share in DEFAULT_CLASSES.items()
    }
    ranks = _class_ranks(conf)
    for name, options in family_sections(conf, QOS_CLASS):
        section, rank = class_section(QOS_CLASS, name), ranks[name]
        # A class with the rank of BE or a lower rank has the memory defaults of BE: its guests are killed
        # early when memory runs out.
        like = DEFAULT_SHARES[BEST_EFFORT] if rank <= ranks[BEST_EFFORT] else MemoryShare()
        # A section of a default class changes only the options that it sets.
        default = classes.get(name, QosClass(name, rank, memory=like))
        share = _share_spec(section, options).overlaid_on(default.share)
        cpu_class = _cpu_class(conf, name, options.cpu_class)
        level = IsolationLevel(options.isolation or default.isolation)
        memory = _memory_share(options, default.memory)
        cpu = _cpu_share(options, default.cpu)
        classes[name] = QosClass(name, rank, share, memory, cpu_class, level, cpu)
    _check_weights(classes)
    _check_realtime(classes)
    # An unknown class is refused, because a misspelt name would otherwise protect all guests or no guests.
    highest = classes.get(conf.qos.highest_class)
    if highest is None:
        raise ConfigError(
            f"[qos] highest_class: there is no class {conf.qos.highest_class!r}; there are"
            f" {', '.join(sorted(classes))}"
        )
    return QosClasses(classes, highest.rank)


def _class_ranks(conf: cfg.ConfigOpts) -> dict[str, int]:
    ranks = dict(_RANKS)
    for name, options in family_sections(conf, QOS_CLASS):
        section = class_section(QOS_CLASS, name)
        rank = ranks.get(name) if options.rank is None else options.rank
        # A new class needs a rank, because there is no default for its place in the order in which guests are
        # limited.
        if rank is None:
            raise ConfigError(f"{section} rank: a class with a name other than BE, LS or LSR needs a rank")
        ranks[name] = rank
    return ranks


def _cpu_class(conf: cfg.ConfigOpts, name: str, cpu_class: str | None) -> str:
    known = [section for section, _ in family_sections(conf, CPU_CLASS)]
    if cpu_class and cpu_class not in known:
        raise ConfigError(
            f"[{QOS_CLASS}{name}] cpu_class: there is no section [{CPU_CLASS}{cpu_class}]; there are"
            f" {', '.join(known) or 'none'}"
        )
    return cpu_class or ""


def _cpu_share(options: cfg.ConfigOpts.GroupAttr, default: CpuShare) -> CpuShare:
    given = {one.name: options[one.name] for one in fields(CpuShare) if options[one.name] is not None}
    found = replace(default, **given)
    return replace(found, core_scheduling=CoreScope(found.core_scheduling))


def _check_weights(classes: Mapping[str, QosClass]) -> None:
    """:raises ConfigError: a class with a rank up to that of BE has a higher CPU weight than BE."""
    best_effort = classes[BEST_EFFORT]
    most = best_effort.cpu.cpu_weight or BEST_EFFORT_WEIGHT
    for one in classes.values():
        if one.rank <= best_effort.rank and (one.cpu.cpu_weight or 0) > most:
            raise ConfigError(
                f"[{QOS_CLASS}{one.name}] cpu_weight: {one.cpu.cpu_weight} is above {most}, the weight of"
                f" {BEST_EFFORT}, but the rank is not above the rank of {BEST_EFFORT}"
            )


def _check_realtime(classes: Mapping[str, QosClass]) -> None:
    """:raises ConfigError: a class has both ``cpu_idle``, to run last, and ``realtime_priority``."""
    for one in classes.values():
        if one.cpu.realtime_priority and one.cpu.cpu_idle:
            raise ConfigError(
                f"[{QOS_CLASS}{one.name}] cpu_idle and realtime_priority exclude each other: remove one"
            )


def _memory_share(options: cfg.ConfigOpts.GroupAttr, default: MemoryShare) -> MemoryShare:
    return MemoryShare(
        default.high if options.memory_high is None else options.memory_high,
        default.low if options.memory_low is None else options.memory_low,
        default.oom_score_adj if options.oom_score_adj is None else options.oom_score_adj,
        default.minimum if options.memory_min is None else options.memory_min,
        default.oom_group if options.oom_group is None else options.oom_group,
        default.limit_mb if options.memory_limit_mb is None else options.memory_limit_mb,
    )


_CAP_PARSERS: Final[Mapping[str, Callable[[str], BandwidthCap]]] = {
    "mb_percent": parse_percent,
    "mb_mbps": parse_rate,
}
"""The parser of each option that limits memory bandwidth. For each of these options, an option with the
suffix ``_per_cache`` has other limits for single caches.
"""


def _share_spec(section: str, options: cfg.ConfigOpts.GroupAttr) -> ShareSpec:
    # The option that is being read, for the message of an error.
    option = ""
    try:
        option, text = "llc_range", options.llc_range
        llc = parse_range(text) if text else None
        option, text = "llc_range_per_cache", options.llc_range_per_cache
        llc_per_cache = parse_per_cache(text or "", parse_range)
        ranges = {}
        for option in ("llc_code_range", "llc_data_range", "l2_range"):
            text = options[option]
            ranges[option] = parse_range(text) if text else None
        caps: list[BandwidthCap] = []
        mb_per_cache: dict[int, BandwidthCap] = {}
        for option, parse in _CAP_PARSERS.items():
            if options[option]:
                caps.append(parse(options[option]))
            if len(caps) > 1:
                raise BadShareError("mb_percent and mb_mbps exclude each other: remove one")
        for name, parse in _CAP_PARSERS.items():
            option = f"{name}_per_cache"
            more = parse_per_cache(options[option] or "", parse)
            if twice := more.keys() & mb_per_cache.keys():
                raise BadShareError(
                    f"cache {min(twice)} has a percent and a bandwidth: remove one of the two"
                )
            mb_per_cache |= more
    except BadShareError as error:
        raise ConfigError(f"{section} {option}: {error}") from error
    return ShareSpec(llc, llc_per_cache, next(iter(caps), None), mb_per_cache, *ranges.values())


def parse_annotation(text: str) -> ShareSpec:
    """Parse the annotation of a guest; an empty text is an empty share.

    :raises BadShareError: the annotation is not JSON, or has an unknown key or a wrong value.
    """
    # A removed annotation is written as an empty text.
    if not text.strip():
        return ShareSpec()
    try:
        body = json.loads(text, object_pairs_hook=_no_duplicates)
    except BadShareError:
        raise
    # A tenant can write any text: json raises RecursionError for thousands of nested brackets.
    except RecursionError as error:
        raise BadShareError("the annotation is nested too deeply") from error
    except ValueError as error:  # Python also raises ValueError for integers of more than 4300 digits
        raise BadShareError(f"the annotation is not JSON: {error}") from error
    top = _json_object("the annotation", body, ("LLC", "MB", "L2"))
    ranges = {"range": _json_range}
    llc, llc_per_cache = _annotation_part(
        "LLC", top.get("LLC"), ranges, dict.fromkeys((_CODE, _DATA), _json_range)
    )
    caps: dict[str, Callable[[str, object], BandwidthCap]] = {"percent": _json_percent, _RATE: _json_rate}
    mb, mb_per_cache = _annotation_part("MB", top.get("MB"), caps)
    if len(mb) > 1:
        raise BadShareError("MB.schemata: percent and mbps exclude each other")
    l2, l2_per_cache = _annotation_part("L2", top.get("L2"), ranges)
    if l2_per_cache:
        raise BadShareError("L2.schemataPerCache: level-2 caches have no shares of their own")
    return ShareSpec(
        llc.get("range"), llc_per_cache, next(iter(mb.values()), None), mb_per_cache,
        llc.get(_CODE), llc.get(_DATA), l2.get("range"),
    )  # fmt: skip


_CODE: Final = "codeRange"
_DATA: Final = "dataRange"
_RATE: Final = "mbps"
"""Keys of the annotation that Koordinator does not define."""


def _annotation_part(
    name: str,
    body: object,
    parsers: Mapping[str, Callable[[str, object], T]],
    everywhere_parsers: Mapping[str, Callable[[str, object], T]] = MappingProxyType({}),
) -> tuple[dict[str, T], dict[int, T]]:
    """Parse one part of the annotation: the values for all caches, and the overrides by cache id.

    :param parsers: the parser of each key; an override has one of these keys.
    :param everywhere_parsers: the parsers of keys that overrides cannot have.
    """
    if body is None:
        return {}, {}
    # Unknown keys are refused: ignoring a misspelt key would give the guest all of the cache.
    fields = _json_object(name, body, ("schemata", "schemataPerCache"))
    everywhere: dict[str, T] = {}
    if fields.get("schemata") is not None:
        where = f"{name}.schemata"
        known = {**parsers, **everywhere_parsers}
        schemata = _json_object(where, fields["schemata"], tuple(known))
        everywhere = {one: known[one](f"{where}.{one}", value) for one, value in schemata.items()}
    per_cache: dict[int, T] = {}
    overrides = fields.get("schemataPerCache")
    if overrides is None:  # Go writes an empty list as null
        overrides = []
    if not isinstance(overrides, list):
        raise BadShareError(f"{name}.schemataPerCache is not a list")
    for index, body in enumerate(overrides):
        where = f"{name}.schemataPerCache[{index}]"
        override = _json_object(where, body, ("cacheid", *parsers))
        keys = [key for key in parsers if key in override]
        if len(keys) != 1:
            raise BadShareError(f"{where} has {'both' if keys else 'no'} {' and '.join(keys or parsers)}")
        cache = _whole_number(f"{where}.cacheid", override.get("cacheid", 0))
        # Two values for one cache are refused, because no rule says which of the two counts.
        if cache in per_cache:
            raise BadShareError(f"{where}: cache {cache} is named twice")
        per_cache[cache] = parsers[keys[0]](f"{where}.{keys[0]}", override[keys[0]])
    return everywhere, per_cache


_SPELLINGS: Final = {"llc": "LLC", "mb": "MB", "l2": "L2", "cacheID": "cacheid"}


def _json_object(where: str, body: object, keys: tuple[str, ...]) -> dict[str, object]:
    """The fields of a JSON object, with the keys in the spelling of Koordinator's design document.

    :raises BadShareError: ``body`` is no object, or has an unknown key or a key twice.
    """
    if not isinstance(body, dict):
        raise BadShareError(f"{where} is not an object")
    fields: dict[str, object] = {}
    for spelled, value in body.items():
        key = _SPELLINGS.get(spelled, spelled)
        if key not in keys:
            raise BadShareError(f"{where} has an unknown key {spelled!r}: it may have {', '.join(keys)}")
        if key in fields:
            raise BadShareError(f"{where} has {key} twice")
        fields[key] = value
    return fields


def _no_duplicates(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    # If a key occurs twice, Python's parser uses the last value, and another tool perhaps uses the first.
    fields: dict[str, object] = {}
    for key, value in pairs:
        if key in fields:
            raise BadShareError(f"the annotation has the key {key!r} twice")
        fields[key] = value
    return fields


def _json_range(where: str, value: object) -> WayRange:
    if not isinstance(value, list) or len(value) != 2:
        raise BadShareError(f"{where} is not a pair of percents")
    try:
        return WayRange(_whole_number(where, value[0]), _whole_number(where, value[1]))
    except BadShareError as error:
        raise BadShareError(f"{where}: {error}") from error


def _json_percent(where: str, value: object) -> int:
    return check_percent(where, _whole_number(where, value))


def _json_rate(where: str, value: object) -> BandwidthRate:
    return check_rate(where, _whole_number(where, value))


def _whole_number(where: str, value: object) -> int:
    # bool is a subclass of int: true would count as 1.
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadShareError(f"{where}: {value!r} is not a whole number")
    return value
