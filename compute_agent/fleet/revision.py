"""Revisions of fleet settings: their head, the reasons to refuse them, and the options that none may set.

The head has the group, the generation and the expiry. A revision controls how a host is used. A revision must
not set identities, trusted keys, programs, or the files and addresses that an agent reads, writes or listens
at. Otherwise the owner of a signing key would have all rights of the agent on each host. The functions are
pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from compute_agent.conf import compute
from compute_agent.conf.written import Written, normal_section


class FleetError(Exception):
    """A source cannot be read, or a revision is refused. The text of the error is the reason."""


class SourceError(FleetError):
    """A source of fleet settings cannot be read now, probably not by other hosts either."""


MAX_BYTES: Final = 256 * 1024
"""Maximum size of a revision in bytes. An ini file with all options needs a tenth of this size."""

GROUP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The form of the name of a group, which is also the name of a file."""

# Metrics and attributes of spans have the generation as a float, which is exact up to this number.
MAX_GENERATION: Final = 2**53

_END: Final = b"#\n"
_FIELD: Final = re.compile(r"# (group|generation|expires) = (\S+)")


@dataclass(frozen=True, slots=True)
class FleetRevision:
    """The head of a revision.

    :ivar generation: the number of the revision, from 1; later revisions of a group have higher numbers.
    :ivar expires: the time from which hosts refuse the revision; None means never.
    :ivar digest: a hash of the whole revision without its signature, in hexadecimal.
    """

    group: str
    generation: int
    expires: datetime | None
    digest: str

    def __str__(self) -> str:
        """The group and generation, by which messages name the revision."""
        return f"{self.group} generation {self.generation}"


def write(settings: bytes, group: str, generation: int, expires: datetime | None = None) -> bytes:
    """The bytes to sign: a head, and the settings in the form of an ini file.

    :raises FleetError: the group or the generation is wrong.
    """
    if not GROUP_NAME.fullmatch(group):
        raise FleetError(
            f"{group!r} is not a name of a group: it has at most 64 letters and digits, and"
            " also ._- after the first character"
        )
    if not 0 < generation <= MAX_GENERATION:
        raise FleetError(f"the generation is {generation}: it has to be 1 at least, {MAX_GENERATION} at most")
    head = f"# group = {group}\n# generation = {generation}\n"
    if expires is not None:
        head += f"# expires = {expires.astimezone(UTC).isoformat(timespec='seconds')}\n"
    return head.encode() + _END + settings


def read(signed: bytes) -> FleetRevision:
    """Parse the head of the bytes that :func:`write` returned.

    :raises FleetError: the bytes are damaged, or from another release.
    """
    head, end, _ = signed.partition(_END)
    found: dict[str, str] = {}
    # Bytes that are not UTF-8 are replaced. The line then matches no field, so the error below names the
    # line.
    for line in head.decode("utf-8", "replace").splitlines():
        field = _FIELD.fullmatch(line)
        if field is None or field[1] in found:
            raise FleetError(f"its first line is of another release, or damaged: {line[:80]!r}")
        found[field[1]] = field[2]
    try:
        group, generation, expires = found["group"], int(found["generation"]), found.get("expires")
        until = None if expires is None else datetime.fromisoformat(expires)
    except (KeyError, ValueError) as error:
        raise FleetError(f"its head is not complete: {error}") from error
    if not end or (until is not None and until.tzinfo is None) or not 0 < generation <= MAX_GENERATION:
        raise FleetError("its head is damaged")
    return FleetRevision(group, generation, until, hashlib.blake2b(signed, digest_size=16).hexdigest())


DEFAULT_SECTION: Final = "DEFAULT"

FORBIDDEN_SECTIONS: Final[Mapping[str, str]] = {
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

FORBIDDEN_OPTIONS: Final[Mapping[tuple[str, str], str]] = {
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
        *(option.dest for option in compute.SECTIONS[DEFAULT_SECTION]),
    }
)
"""The options of ``[DEFAULT]`` that a revision may set. All other options of ``[DEFAULT]`` are paths, or
options of the log.
"""

_REFERENCE: Final = "$"


def refusal_reason(offered: FleetRevision, group: str, known: Iterable[FleetRevision], now: datetime) -> str:
    """The reason why a host refuses a revision; empty if the host may adopt it.

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
        normal = normal_section(section)
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
        return FORBIDDEN_SECTIONS["placement"]
    if section == DEFAULT_SECTION and option not in IN_DEFAULT:
        return "a path, or where logs go"
    family, colon, _ = section.partition(":")
    return FORBIDDEN_SECTIONS.get(section, "") or FORBIDDEN_OPTIONS.get((family + colon, option), "")


def _former_places(
    options: Iterable[tuple[str, Iterable[Any]]],
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Yield a pair for each renamed option: its former section and name, and its present section and name."""
    for section, some in options:
        for option in some:
            for old in option.deprecated_opts:
                yield (old.group or section, old.name), (section, option.dest)
