"""Reads settings of a guest in the section ``[X-ComputeAgent]`` of the files of its unit.

systemd ignores sections that begin with ``X-`` (systemd.unit(5)). The section can be in the unit file and in
drop-ins of this file. A scope has drop-ins only. Settings in later files override settings in earlier files,
as in all other sections. A unit with the section is a guest, even if the section is empty, unless the section
has ``Guest=false``.

These files decide about CPUs of the host. So the agent accepts the section only in files that no other user
can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from compute_agent.drivers.foreign.declared import (
    BadDeclarationError,
    DeclaredSettings,
    KeyNames,
    parse_declaration,
    read_wish,
)
from compute_agent.files import UnsafeFileError, check_folder, read_bounded
from compute_agent.model.guest_settings import SETTING_NAMES
from compute_agent.model.messages import named_few

SECTION: Final = "X-ComputeAgent"

GUEST: Final = "Guest"
"""The key that says whether the unit is a guest."""

# The limit is far above the size of real unit files, which have a few kB. systemd has a limit, too
# (READ_FULL_BYTES_MAX, 64 MiB).
_MAX_BYTES: Final = 1 << 20

KEYS: Final[Mapping[str, str]] = {
    "Class" if name == "qos_class" else "".join(word.capitalize() for word in name.split("_")): name
    for name in SETTING_NAMES
}
"""The settings of guests by their keys in the section, such as ``Class`` for ``qos_class``."""


_KEYS: Final = KeyNames("Uuid", "Vcpus", "Memory", KEYS, f"[{SECTION}]")


def section_lines(text: str) -> list[tuple[str, str]] | None:
    """The assignments (key and value) in the sections ``[X-ComputeAgent]``; None without such a section.

    systemd.syntax(7) describes the syntax. If a line ends with a backslash, the next line continues it.
    Comments begin with ``#`` or ``;``.
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


def parse_section(lines: Sequence[tuple[str, str]]) -> DeclaredSettings | None:
    """The settings in the assignments of all files, in the order of the files.

    The last assignment of a key applies; an empty value stands for the default. The result is None if the
    assignments say that the unit is no guest.

    :raises BadDeclarationError: the value of ``Guest``, the uuid, the number of CPUs or the memory cannot be
        used.
    """
    values = dict(lines)
    return parse_declaration(values, _KEYS) if read_wish(GUEST, values.pop(GUEST, "") or "true") else None


def read_settings(paths: Sequence[Path], is_chosen: bool = False) -> DeclaredSettings | None:
    """Read the settings in the files of a unit; None if the unit is not meant to be a guest.

    :param paths: the unit file and its drop-ins, in the order in which systemd applies them.
    :param is_chosen: whether an option of the agent names the unit, so that it is a guest even without the
        section.
    :raises BadDeclarationError: a value cannot be used, or other users can change a file with the section.
    """
    lines: list[tuple[str, str]] = []
    with_section: list[Path] = []
    for path in paths:
        try:
            text = read_bounded(path, _MAX_BYTES).decode(errors="replace")
        except OSError:
            # The file was removed, or is a link to /dev/null (a masked drop-in). systemd does not read such a
            # file, either.
            continue
        if (found := section_lines(text)) is not None:
            with_section.append(path)
            lines += found
    if not with_section and not is_chosen:
        return None
    unsafe = [str(error) for path in with_section if (error := _trust_error(path)) is not None]
    if unsafe:
        raise BadDeclarationError(f"a file with [{SECTION}] is not trusted: {named_few(unsafe, 1)}")
    return parse_section(lines)


def _trust_error(path: Path) -> UnsafeFileError | None:
    """The reason why a file is not trusted; None if only root and the agent's user can change it."""
    try:
        check_folder(path)
    except UnsafeFileError as error:
        return error
    return None
