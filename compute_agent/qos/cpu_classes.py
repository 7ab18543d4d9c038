"""The classes of CPUs, from their sections."""

from __future__ import annotations

import re
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.qos import cpu_class_sections
from compute_agent.model.cpuset import Bound, CpuClass, NamedFrequency
from compute_agent.model.guest import class_section
from compute_agent.model.messages import ConfigError

_KHZ: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_PAIRS: Final = (("min_frequency", "max_frequency"), ("uncore_min_frequency", "uncore_max_frequency"))


def parse_cpu_classes(conf: cfg.ConfigOpts) -> dict[str, CpuClass]:
    """The classes by name.

    :raises ConfigError: naming section and option.
    """
    return {name: _class(name, options) for name, options in cpu_class_sections(conf)}


def _class(name: str, options: Any) -> CpuClass:
    section = class_section(CPU_CLASS, name)
    for option in ("governor", "energy_performance_preference"):
        _check_word(section, option, options[option])
    for state in options.disabled_c_states:
        _check_word(section, "disabled_c_states", state)
    bounds = {option: _bound(section, option, options[option]) for pair in _PAIRS for option in pair}
    for low, high in _PAIRS:
        if _exceeds(bounds[low], bounds[high]):
            raise ConfigError(
                f"{section} {low} = {bounds[low]} is above {high} = {bounds[high]}: change one of the two"
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
    )


def _check_word(section: str, option: str, text: str | None) -> None:
    if text is not None and not (text.isascii() and text.isprintable() and text and " " not in text):
        raise ConfigError(f"{section} {option} = {text!r}: one word is needed, as the kernel names it")


def _bound(section: str, option: str, text: str | None) -> Bound:
    if text is None:
        return None
    words = [
        word for word in NamedFrequency if not option.startswith("uncore") or word != NamedFrequency.BASE
    ]
    if text in words:
        return NamedFrequency(text)
    if not _KHZ.fullmatch(text):
        raise ConfigError(
            f"{section} {option} = {text!r}: a number of kHz is needed, or {' or '.join(words)}"
        )
    return int(text)


def _exceeds(low: Bound, high: Bound) -> bool:
    """Whether that is so on every processor; a word and a number are compared when the word is known."""
    order = list(NamedFrequency)
    if isinstance(low, NamedFrequency) and isinstance(high, NamedFrequency):
        return order.index(low) > order.index(high)
    return (
        not isinstance(low, NamedFrequency | None)
        and not isinstance(high, NamedFrequency | None)
        and low > high
    )
