"""Rules for revisions: reasons to refuse a revision, and options that no revision may set. Pure functions.

A revision controls how a host is used. A revision must not set identities, trusted keys, programs, or the
files and addresses that an agent reads, writes or listens at. Otherwise the owner of a signing key would have
all rights of the agent on each host.
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
    "systemd": "a path",
    "podman": "a path, and the containers that are guests",
    "docker": "a path, and the containers that are guests",
    "tracing": "where spans are sent",
}
"""The sections that no revision may have. Messages name the value: what the section would control."""

OPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("qos", "evict_command"): "a program",
    ("interference:", "escalate_command"): "a program",
    ("metric:", "command"): "a program",
    ("metric:", "url"): "where the agent sends queries",
    ("resctrl", "mount"): "a file system that is mounted",
    ("resctrl", "mount_options"): "a file system that is mounted",
    ("compute", "resource_provider_name"): "who the host is",
    ("compute", "provider_config_location"): "a path",
}
"""The options that no revision may set. Messages name the value: what the option would control.

The key is the section and the name of the option. A section name that ends with a colon means all sections
with names that begin with this text.
"""

IN_DEFAULT: Final = frozenset(
    {
        "debug",
        *(option.dest for option in compute.SECTIONS[DEFAULT]),
    }
)
"""The options of ``[DEFAULT]`` that a revision may set. All other options of ``[DEFAULT]`` are paths, or
options of the log.
"""

_REFERENCE: Final = "$"


def refusal_reason(offered: FleetRevision, group: str, known: Iterable[FleetRevision], now: datetime) -> str:
    """The reason why a host refuses a revision; empty if the host may adopt it.

    :param group: the group of the host.
    :param known: the earlier revisions of the host: the adopted revision and the last refused revision.
    """
    if offered.group != group:
        return f"it is of the group {offered.group}, and this host is of {group}"
    for each in known:
        if each.group != group:
            continue  # the host was in another group before
        if offered.generation < each.generation:
            return f"its generation is {offered.generation}, and {each.generation} was here before"
        if offered.generation == each.generation and offered.digest != each.digest:
            return f"another revision was here before as generation {each.generation}: sign it as a later one"
    return expiry_reason(offered, now)


def expiry_reason(revision: FleetRevision, now: datetime) -> str:
    """A clause for messages if a revision has expired; empty otherwise."""
    if revision.expires is None or now < revision.expires:
        return ""
    return f"it expired at {revision.expires.isoformat()}: sign a later generation"


def forbidden_options(
    revision: Written, options: Iterable[tuple[str, Iterable[Any]]], auth_section: str | None
) -> list[str]:
    """A sentence for each option that a revision must not set.

    :param options: all options of the agent by section, with their former names.
    :param auth_section: another section with the credentials for Placement; None if there is no other
        section.
    """
    former = dict(_former_places(options))
    found = []
    for section, values in revision.items():
        # oslo.config ignores the case of section names, except for DEFAULT.
        normal = section if section == DEFAULT or ":" in section else section.lower()
        for name, value in values.items():
            # A former name of an option sets the same option.
            group, option = former.get((normal, name), (normal, name))
            if reason := _forbidden_reason(group, option, auth_section):
                found.append(f"[{section}] {name}: a revision may not have it ({reason}); set it on the host")
            # oslo.config would replace the reference by the value of another option, such as a password.
            elif _REFERENCE in value:
                found.append(
                    f"[{section}] {name}: a revision may not refer to other options, as {value!r} does"
                )
    return found


def _forbidden_reason(section: str, option: str, auth_section: str | None) -> str:
    if auth_section is not None and section == auth_section.lower():
        return SECTIONS["placement"]
    if section == DEFAULT and option not in IN_DEFAULT:
        return "a path, or where logs go"
    family, colon, _ = section.partition(":")
    return SECTIONS.get(section, "") or OPTIONS.get((family + colon, option), "")


def _former_places(
    options: Iterable[tuple[str, Iterable[Any]]],
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield a pair for each renamed option: its former section and name, and its present section and name."""
    for section, some in options:
        for option in some:
            for old in option.deprecated_opts:
                yield (old.group or section, old.name), (section, option.dest)
