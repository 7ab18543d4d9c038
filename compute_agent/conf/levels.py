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
    "guests": (
        *("claim", "claim_dedicated", "claim_grace", "claim_project", "claim_user", "end_notice"),
        *("label_settings", "no_room", "unit_settings"),
    ),
    "qos_class:NAME": ("core_scheduling", "isolation", "realtime_priority", "reclaimed_cap"),
}
"""The experimental options of sections that have another level."""


def mark_options(section: str, options: Iterable[Any]) -> list[Any]:
    """Return the options of a section. The help of a beta or experimental option begins with its level."""
    marked = []
    for option in options:
        level = EXPERIMENTAL if option.dest in _OPTIONS.get(section, ()) else _SECTIONS.get(section)
        if level is not None:
            option = copy.copy(option)
            option.help = f"{level}. {(option.help or '').lstrip()}"
        marked.append(option)
    return marked
