"""What becomes of a revision that is offered, and what may not be in one: pure functions.

A revision says how a host is used. It does not say who the host is, whom it believes, what it runs, or where
it reads, writes and listens: whoever can sign revisions could otherwise do on each host what its agent can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from compute_agent.conf import compute
from compute_agent.conf.written import Written
from compute_agent.fleet.revision import FleetRevision

DEFAULT: Final = "DEFAULT"

SECTIONS: Final[Mapping[str, str]] = {
    "fleet": "where revisions come from, and who signs them",
    "daemon": "where the agent listens",
    "placement": "the way to Placement, and credentials",
    "host": "where the host is read",
    "libvirt": "a connection, which may run programs",
    "cgroup": "a path",
    "tracing": "where spans are sent",
}
"""Sections that no revision may have, and what they are about."""

OPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("qos", "evict_command"): "a program",
    ("interference:", "escalate_command"): "a program",
    ("resctrl", "mount"): "a file system that is mounted",
    ("resctrl", "mount_options"): "a file system that is mounted",
    ("compute", "resource_provider_name"): "who the host is",
    ("compute", "provider_config_location"): "a path",
}
"""Single options that no revision may have, by section; of a family of sections by how their names begin."""

IN_DEFAULT: Final = frozenset(
    {
        "debug",
        *(
            option.dest
            for section, options in compute.list_opts()
            if section == DEFAULT
            for option in options
        ),
    }
)
"""Of [DEFAULT] what a revision may have; the rest are paths and logs."""

_REFERENCE: Final = "$"


def refusal(offered: FleetRevision, group: str, known: Iterable[FleetRevision], now: datetime) -> str:
    """Why a revision is not for this host now; empty if it is.

    :param known: those that it had before: the one that it works by, and one that was refused.
    """
    if offered.group != group:
        return f"it is of the group {offered.group}, and this host is of {group}"
    for each in known:
        if each.group != group:
            continue  # of the group that the host was in before
        if offered.generation < each.generation:
            return f"its generation is {offered.generation}, and {each.generation} was here before"
        if offered.generation == each.generation and offered.digest != each.digest:
            return f"another revision was here before as generation {each.generation}: sign it as a later one"
    return expiry(offered, now)


def expiry(revision: FleetRevision, now: datetime) -> str:
    """A sentence about a revision that is too old by what it says itself; empty if it is not."""
    if revision.expires is None or now < revision.expires:
        return ""
    return f"it expired at {revision.expires.isoformat()}: sign a later generation"


def forbidden(
    revision: Written, options: Iterable[tuple[str, Iterable[Any]]], auth_section: str | None
) -> list[str]:
    """What of a revision may not be in one: a sentence each.

    :param options: all that there are, by section, with the names that they had before.
    :param auth_section: another section in which the host has its credentials.
    """
    former = dict(_places(options))
    found = []
    for section, values in revision.items():
        normal = section if section == DEFAULT or ":" in section else section.lower()
        for name, value in values.items():
            group, option = former.get((normal, name), (normal, name))
            if reason := _reason(group, option, auth_section):
                found.append(f"[{section}] {name}: a revision may not have it ({reason}); set it on the host")
            elif _REFERENCE in value:
                found.append(
                    f"[{section}] {name}: a revision may not refer to other options, as {value!r} does"
                )
    return found


def _reason(section: str, option: str, auth_section: str | None) -> str:
    if auth_section is not None and section == auth_section.lower():
        return SECTIONS["placement"]
    if section == DEFAULT and option not in IN_DEFAULT:
        return "a path, or where logs go"
    family, colon, _ = section.partition(":")
    return SECTIONS.get(section, "") or OPTIONS.get((family + colon, option), "")


def _places(
    options: Iterable[tuple[str, Iterable[Any]]],
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each former place of an option, as section and name, with its present one."""
    for section, some in options:
        for option in some:
            for old in option.deprecated_opts:
                yield (old.group or section, old.name), (section, option.dest)
