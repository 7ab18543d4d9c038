"""Levels of stability of options. Help texts, samples and the reference show the level of an option.

``doc/reference/stability.md`` explains the levels, and lists the same sections and options as this module.
Options without a level are stable.
"""

import copy
from collections.abc import Iterable
from typing import Any, Final

EXPERIMENTAL: Final = "Experimental"
BETA: Final = "Beta"

_SECTIONS: Final = {
    "blockio_class:NAME": BETA,
    "capacity": EXPERIMENTAL,
    "cpu_class:NAME": BETA,
    "cpu_pool:NAME": BETA,
    "docker": EXPERIMENTAL,
    "events": BETA,
    "fleet": EXPERIMENTAL,
    "guest_rule:NAME": BETA,
    "interference:NAME": EXPERIMENTAL,
    "isolation": EXPERIMENTAL,
    "metric:NAME": EXPERIMENTAL,
    "metrics": BETA,
    "monitoring": BETA,
    "pci": EXPERIMENTAL,
    "podman": EXPERIMENTAL,
    "qos": BETA,
    "qos_class:NAME": BETA,
    "systemd": EXPERIMENTAL,
    "tracing": BETA,
    "watermark:NAME": BETA,
}
_OPTIONS: Final = {
    ("guests", "claim"): EXPERIMENTAL,
    ("guests", "claim_dedicated"): EXPERIMENTAL,
    ("guests", "claim_grace"): EXPERIMENTAL,
    ("guests", "claim_project"): EXPERIMENTAL,
    ("guests", "claim_user"): EXPERIMENTAL,
    ("guests", "end_notice"): EXPERIMENTAL,
    ("guests", "label_settings"): EXPERIMENTAL,
    ("guests", "no_room"): EXPERIMENTAL,
    ("guests", "unit_settings"): EXPERIMENTAL,
    ("qos_class:NAME", "core_scheduling"): EXPERIMENTAL,
    ("qos_class:NAME", "isolation"): EXPERIMENTAL,
    ("qos_class:NAME", "realtime_priority"): EXPERIMENTAL,
    ("qos_class:NAME", "reclaimed_cap"): EXPERIMENTAL,
}
"""The levels of options that differ from the level of their section."""


def mark_options(section: str, options: Iterable[Any]) -> list[Any]:
    """Return the options of a section. The help of a beta or experimental option begins with its level."""
    marked = []
    for option in options:
        level = _OPTIONS.get((section, option.dest), _SECTIONS.get(section))
        if level is not None:
            option = copy.copy(option)
            option.help = f"{level}. {(option.help or '').lstrip()}"
        marked.append(option)
    return marked
