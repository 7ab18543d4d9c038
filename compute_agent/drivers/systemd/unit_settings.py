"""Settings of a guest in the section ``[X-ComputeAgent]`` of the files of its service.

systemd ignores sections that begin with ``X-`` (systemd.unit(5)). The unit file and its drop-ins may have the
section. Later files override earlier ones, as in all other sections. A service with the section is a guest,
even if the section is empty.

A file decides about CPUs of the host, so only files that no other user can change are read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compute_agent.files import UnsafeFileError, check_folder, read_bounded
from compute_agent.model.guest_settings import MAX_VCPUS, SETTING_NAMES, GuestSettings, read_setting
from compute_agent.model.messages import named_few, printable_text

SECTION: Final = "X-ComputeAgent"

# systemd refuses larger files, too (READ_FULL_BYTES_MAX is 64 MiB; unit files have a few kB).
_MAX_BYTES: Final = 1 << 20

# An upper limit for the number of problems in messages of one service.
_MAX_PROBLEMS: Final = 20

_VCPUS: Final = re.compile(r"[0-9]{1,4}\Z")

_NAMESPACE: Final = uuid.UUID("0a1c6f4e-52f7-5d0b-9d3e-6a0f8f7c1b55")
"""The namespace of uuids that are made from names."""

KEYS: Final[Mapping[str, str]] = {
    "Class" if name == "qos_class" else "".join(word.capitalize() for word in name.split("_")): name
    for name in SETTING_NAMES
}
"""The settings of guests by their keys in the section, such as ``Class`` for ``qos_class``."""


class BadSectionError(ValueError):
    """The section has a value without which the service cannot be a guest. The text names the key."""


@dataclass(frozen=True, slots=True)
class UnitSettings:
    """The content of the section.

    :ivar guest_uuid: the uuid; empty: it is made from the names of host and service.
    :ivar declared: the values of settings, by setting.
    :ivar problems: sentences about lines that have no effect.
    """

    guest_uuid: str = ""
    vcpus: int = 1
    declared: Mapping[str, Any] = ()  # type: ignore[assignment]  # an empty default that is not shared
    problems: tuple[str, ...] = ()

    @property
    def guest_settings(self) -> GuestSettings:
        """The settings, with defaults for those that the section does not have."""
        return GuestSettings(vcpus=self.vcpus, **dict(self.declared))


def made_uuid(host: str, unit: str) -> str:
    """The uuid of a service without ``Uuid=``: a uuid of version 5 from the names of host and service.

    :param host: the name of the host's resource provider.
    """
    # No name of a host or of a unit has a slash.
    return str(uuid.uuid5(_NAMESPACE, f"{host}/{unit}"))


def section_lines(text: str) -> list[tuple[str, str]] | None:
    """The assignments in the sections ``[X-ComputeAgent]`` of a file; None if it has no such section.

    The syntax is that of systemd.syntax(7): a backslash at the end continues a line, and comments begin with
    ``#`` or ``;``.
    """
    found: list[tuple[str, str]] | None = None
    inside = False
    for line in _joined_lines(text):
        if line.startswith("["):
            inside = line == f"[{SECTION}]"
            if inside and found is None:
                found = []
        elif inside and found is not None:
            key, separator, value = line.partition("=")
            found.append((key.strip(), value.strip()) if separator else (line, ""))
    return found


def _joined_lines(text: str) -> Iterable[str]:
    joined = ""
    for raw in text.split("\n"):
        line = raw.strip()
        # A comment between the parts of a continued line is skipped.
        if (not line and not joined) or line.startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        if whole := (joined + line).strip():
            yield whole
        joined = ""
    if joined.strip():
        yield joined.strip()


def parse_section(lines: Sequence[tuple[str, str]]) -> UnitSettings:
    """The settings in the assignments of all files, in the order of the files.

    The last assignment of a key applies; an empty one means the default.

    :raises BadSectionError: the uuid or the number of CPUs cannot be used.
    """
    values: dict[str, str] = dict(lines)
    guest_uuid, vcpus = values.pop("Uuid", ""), values.pop("Vcpus", "")
    if guest_uuid:
        try:
            guest_uuid = str(uuid.UUID(guest_uuid))
        except ValueError as error:
            raise BadSectionError(f"Uuid={printable_text(guest_uuid)} is not a uuid") from error
    if vcpus and (not _VCPUS.match(vcpus) or not 1 <= int(vcpus) <= MAX_VCPUS):
        raise BadSectionError(f"Vcpus={printable_text(vcpus)} is not a whole number from 1 to {MAX_VCPUS}")
    declared: dict[str, Any] = {}
    problems: list[str] = []
    for key, text in values.items():
        if key not in KEYS:
            problems.append(f"[{SECTION}] {printable_text(key)} is not a setting of guests")
        elif text:
            try:
                declared[KEYS[key]] = read_setting(KEYS[key], text)
            except ValueError as error:
                problems.append(f"[{SECTION}] {key}={printable_text(text)} has no effect: {error}")
    if len(problems) > _MAX_PROBLEMS:
        problems = [*problems[:_MAX_PROBLEMS], f"{len(problems) - _MAX_PROBLEMS} more lines have no effect"]
    return UnitSettings(guest_uuid, int(vcpus or 1), declared, tuple(problems))


def read_settings(paths: Sequence[Path]) -> UnitSettings | None:
    """Read the settings in the files of a service; None if no file has the section.

    :param paths: the unit file and its drop-ins, in the order in which systemd applies them.
    :raises BadSectionError: a value cannot be used, or other users can change a file with the section.
    """
    lines: list[tuple[str, str]] = []
    with_section: list[Path] = []
    for path in paths:
        try:
            text = read_bounded(path, _MAX_BYTES).decode(errors="replace")
        except OSError:
            # The file was removed, or it is /dev/null (a masked drop-in). systemd does not read it, either.
            continue
        if (found := section_lines(text)) is not None:
            with_section.append(path)
            lines += found
    if not with_section:
        return None
    unsafe = [str(error) for path in with_section if (error := _trust_error(path)) is not None]
    if unsafe:
        raise BadSectionError(f"a file with [{SECTION}] is not trusted: {named_few(unsafe, 1)}")
    return parse_section(lines)


def _trust_error(path: Path) -> UnsafeFileError | None:
    """The reason why a file is not trusted; None if only root and the agent's user can change it."""
    try:
        check_folder(path)
    except UnsafeFileError as error:
        return error
    return None
