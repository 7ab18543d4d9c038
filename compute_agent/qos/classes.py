"""The classes of guests: which one gives way first, and which ones never do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from oslo_config import cfg

from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.qos import QOS_CLASS, cpu_class_sections, qos_class_sections
from compute_agent.model.guest import (
    BEST_EFFORT,
    LATENCY_SENSITIVE,
    LATENCY_SENSITIVE_RESERVED,
    class_section,
)
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import DEFAULT_SHARES, MemoryShare
from compute_agent.resctrl.share_spec import (
    BadShareError,
    ShareSpec,
    WayRange,
    parse_per_cache,
    parse_percent,
    parse_range,
)

DEFAULT_CLASSES: Final[Mapping[str, ShareSpec]] = {
    LATENCY_SENSITIVE_RESERVED: ShareSpec(WayRange(0, 100), mb=100),
    LATENCY_SENSITIVE: ShareSpec(WayRange(0, 100), mb=100),
    BEST_EFFORT: ShareSpec(WayRange(0, 30), mb=100),
}
"""The shares of the classes that exist without configuration."""

_RANKS: Final = {BEST_EFFORT: 0, LATENCY_SENSITIVE: 10, LATENCY_SENSITIVE_RESERVED: 20}


@dataclass(frozen=True, slots=True)
class QosClass:
    """A class: guests of a lower ``rank`` give way first.

    ``wish`` is its share of caches and bandwidth, ``memory`` what it means for memory. ``cpu_class`` is the
    class of dedicated CPUs; empty: none.
    """

    name: str
    rank: int
    wish: ShareSpec = field(default_factory=ShareSpec)
    memory: MemoryShare = field(default_factory=MemoryShare)
    cpu_class: str = ""


@dataclass(frozen=True, slots=True)
class QosClasses:
    """All classes by name. Guests of a higher rank than ``highest`` are never acted on."""

    classes: Mapping[str, QosClass]
    highest: int

    @property
    def wishes(self) -> dict[str, ShareSpec]:
        """Their shares of caches and bandwidth."""
        return {name: one.wish for name, one in self.classes.items()}

    @property
    def best_effort(self) -> frozenset[str]:
        """``BE``, and classes that give way no later: their guests live on what others leave."""
        highest = self.classes[BEST_EFFORT].rank
        return frozenset(name for name, one in self.classes.items() if one.rank <= highest)

    def rank(self, name: str) -> int:
        """The rank of a class; one that nobody has configured is above all others."""
        known = self.classes.get(name)
        return max(one.rank for one in self.classes.values()) + 1 if known is None else known.rank

    def protects(self, name: str, dedicated: bool) -> bool:
        """Whether guests of a class, with or without dedicated CPUs, must not be acted on."""
        return dedicated or self.rank(name) > self.highest


def parse_classes(conf: cfg.ConfigOpts) -> QosClasses:
    """The default classes and those of the configuration.

    :raises ConfigError: naming section and option.
    """
    classes = {
        name: QosClass(name, _RANKS[name], wish, DEFAULT_SHARES.get(name, MemoryShare()))
        for name, wish in DEFAULT_CLASSES.items()
    }
    ranks = _ranks(conf)
    for name, options in qos_class_sections(conf):
        section, rank = class_section(QOS_CLASS, name), ranks[name]
        like = DEFAULT_SHARES[BEST_EFFORT] if rank <= ranks[BEST_EFFORT] else MemoryShare()
        default = classes.get(name, QosClass(name, rank, memory=like))
        wish = _wish(section, options).overlaid_on(default.wish)
        cpu_class = _cpu_class(conf, name, options.cpu_class)
        classes[name] = QosClass(name, rank, wish, _memory(options, default.memory), cpu_class)
    highest = classes.get(conf.qos.highest_class)
    if highest is None:
        raise ConfigError(
            f"[qos] highest_class: there is no class {conf.qos.highest_class!r}; there are"
            f" {', '.join(sorted(classes))}"
        )
    return QosClasses(classes, highest.rank)


def _ranks(conf: cfg.ConfigOpts) -> dict[str, int]:
    ranks = dict(_RANKS)
    for name, options in qos_class_sections(conf):
        section = class_section(QOS_CLASS, name)
        rank = ranks.get(name) if options.rank is None else options.rank
        if rank is None:
            raise ConfigError(f"{section} rank: a class of another name than BE, LS or LSR needs one")
        ranks[name] = rank
    return ranks


def _cpu_class(conf: cfg.ConfigOpts, name: str, cpu_class: str | None) -> str:
    known = [section for section, _ in cpu_class_sections(conf)]
    if cpu_class and cpu_class not in known:
        raise ConfigError(
            f"[{QOS_CLASS}{name}] cpu_class: there is no section [{CPU_CLASS}{cpu_class}]; there are"
            f" {', '.join(known) or 'none'}"
        )
    return cpu_class or ""


def _memory(options: cfg.ConfigOpts.GroupAttr, default: MemoryShare) -> MemoryShare:
    return MemoryShare(
        default.high if options.memory_high is None else options.memory_high,
        default.low if options.memory_low is None else options.memory_low,
        default.oom_score_adj if options.oom_score_adj is None else options.oom_score_adj,
    )


def _wish(section: str, options: cfg.ConfigOpts.GroupAttr) -> ShareSpec:
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
        option, text = "mb_percent", options.mb_percent
        mb = parse_percent(text) if text else None
        option, text = "mb_percent_per_cache", options.mb_percent_per_cache
        mb_per_cache = parse_per_cache(text or "", parse_percent)
    except BadShareError as error:
        raise ConfigError(f"{section} {option}: {error}") from error
    return ShareSpec(llc, llc_per_cache, mb, mb_per_cache, *ranges.values())
