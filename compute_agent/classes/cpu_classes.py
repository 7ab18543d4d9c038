"""Reads CPU classes (frequencies, idle states) and CPU pools from sections of the configuration."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.qos import family_sections
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CPU_POOL, IDLE, Bound, CpuClass, CpuPool, NamedFrequency, ParkMode
from compute_agent.model.guest_settings import class_section
from compute_agent.model.messages import ConfigError

_KHZ: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_PAIRS: Final = (("min_frequency", "max_frequency"), ("uncore_min_frequency", "uncore_max_frequency"))


def parse_cpu_classes(conf: cfg.ConfigOpts) -> dict[str, CpuClass]:
    """Read the sections ``[cpu_class:NAME]``, by name."""
    return {name: _cpu_class(name, options) for name, options in family_sections(conf, CPU_CLASS)}


def _cpu_class(name: str, options: Any) -> CpuClass:
    section = class_section(CPU_CLASS, name)
    # The agent writes these words to sysfs unchanged, so each value has to be a single word.
    for option in ("governor", "energy_performance_preference"):
        _check_word(section, option, options[option])
    for state in options.disabled_c_states:
        _check_word(section, "disabled_c_states", state)
    bounds = {
        option: _frequency_bound(section, option, options[option]) for pair in _PAIRS for option in pair
    }
    for low, high in _PAIRS:
        if _always_exceeds(bounds[low], bounds[high]):
            raise ConfigError(
                f"{section} {low} = {bounds[low]} is above {high} = {bounds[high]}: change one of the two"
            )
    if options.park is not None and name != IDLE:
        raise ConfigError(
            f"{section} park: only dedicated CPUs that no guest holds are parked; move the option to"
            f" {class_section(CPU_CLASS, IDLE)}"
        )
    return CpuClass(
        name,
        options.governor,
        bounds["min_frequency"],
        bounds["max_frequency"],
        options.energy_performance_preference,
        tuple(options.disabled_c_states),
        bounds["uncore_min_frequency"],
        bounds["uncore_max_frequency"],
        None if options.park is None else ParkMode(options.park),
        options.park_after,
    )


def _check_word(section: str, option: str, text: str | None) -> None:
    if text is not None and not (text.isascii() and text.isprintable() and text and " " not in text):
        raise ConfigError(f"{section} {option} = {text!r}: one word is needed, as the kernel names it")


def _frequency_bound(section: str, option: str, text: str | None) -> Bound:
    if text is None:
        return None
    # The kernel reports no base frequency of the uncore, so the word is not allowed there.
    words = [
        word for word in NamedFrequency if not option.startswith("uncore") or word != NamedFrequency.BASE
    ]
    if text in words:
        return NamedFrequency(text)
    # Numbers are in kHz as in sysfs, and no suffix is accepted.
    if not _KHZ.fullmatch(text):
        raise ConfigError(
            f"{section} {option} = {text!r}: a number of kHz is needed, or {' or '.join(words)}"
        )
    return int(text)


def _always_exceeds(low: Bound, high: Bound) -> bool:
    """Whether the bound ``low`` is above the bound ``high`` on every processor."""
    order = list(NamedFrequency)
    if isinstance(low, NamedFrequency) and isinstance(high, NamedFrequency):
        return order.index(low) > order.index(high)
    # The value of a word, such as base, depends on the processor. So only the controller can compare a word
    # with a number.
    return isinstance(low, int) and isinstance(high, int) and low > high


def parse_cpu_pools(conf: cfg.ConfigOpts, guest_classes: Collection[str]) -> tuple[CpuPool, ...]:
    """Read the sections ``[cpu_pool:NAME]``, in the order of their names.

    :param guest_classes: the names of all classes of guests.
    """
    return tuple(_cpu_pool(name, options, guest_classes) for name, options in family_sections(conf, CPU_POOL))


def _cpu_pool(name: str, options: Any, guest_classes: Collection[str]) -> CpuPool:
    section = class_section(CPU_POOL, name)
    cpus = frozenset[int]()
    if options.cpus is not None:
        try:
            cpus = cpuset.parse(options.cpus)
        except cpuset.BadCpuSet as error:
            raise ConfigError(f"{section} cpus: {error}") from error
    numbers = options.dedicated_cpus or options.shared_cpus
    # A pool has either a list of CPUs or a number of CPUs; a list and a number could contradict each other.
    if bool(cpus) == bool(numbers):
        raise ConfigError(
            f"{section}: a pool has either cpus, such as 4-7, or a number of dedicated_cpus and shared_cpus"
        )
    # A list of CPUs determines their NUMA nodes already.
    if options.per_node and not numbers:
        raise ConfigError(
            f"{section} per_node: the option needs dedicated_cpus or shared_cpus; set one of"
            " them, or remove per_node"
        )
    # An unknown class is refused, because no guest can have this class, and the CPUs of the pool would stay
    # unused.
    if unknown := sorted(set(options.guest_classes) - set(guest_classes)):
        raise ConfigError(
            f"{section} guest_classes: there is no class {', '.join(unknown)}; there are"
            f" {', '.join(sorted(guest_classes))}"
        )
    return CpuPool(
        name,
        cpus,
        options.dedicated_cpus,
        options.shared_cpus,
        options.per_node,
        options.max_cpus,
        frozenset(options.guest_classes),
        options.max_guests,
    )
