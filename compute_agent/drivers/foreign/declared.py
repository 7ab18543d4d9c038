"""Parses the settings of a guest that a unit file or the labels of a container declare.

The settings are texts by key. The module consists of pure functions.
"""

from __future__ import annotations

import fnmatch
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from compute_agent.model.guest_settings import MAX_VCPUS, GuestSettings, read_setting
from compute_agent.model.messages import printable_text

# The maximum number of problems of one guest that messages name.
_MAX_PROBLEMS: Final = 20

_NUMBER: Final = re.compile(r"[0-9]{1,10}\Z")

MAX_MEMORY_MB: Final = (1 << 31) - 1
"""The largest amount of one resource that Placement accepts."""

_NAMESPACE: Final = uuid.UUID("0a1c6f4e-52f7-5d0b-9d3e-6a0f8f7c1b55")
"""The namespace of the uuids that are derived from names."""


class BadDeclarationError(ValueError):
    """A declared value cannot be used, and the subject cannot be a guest without this value.

    The text of the error names the key.
    """


@dataclass(frozen=True, slots=True)
class DeclaredSettings:
    """The declared settings of a guest.

    :ivar guest_uuid: the declared uuid; empty if no uuid is declared, so that one is derived from names.
    :ivar memory_mb: the memory to claim in MiB; 0 if not declared.
    :ivar declared: the values of the declared settings, by the name of the setting.
    :ivar problems: messages about keys that have no effect.
    """

    guest_uuid: str = ""
    vcpus: int = 1
    declared: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    memory_mb: int = 0

    @property
    def guest_settings(self) -> GuestSettings:
        """The settings of the guest, with the defaults of settings that are not declared."""
        return GuestSettings(vcpus=self.vcpus, **self.declared)


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The keys of settings in one kind of declarations (unit files, or labels of containers).

    :ivar uuid: the key of the uuid.
    :ivar vcpus: the key of the number of CPUs.
    :ivar memory: the key of the memory in MiB.
    :ivar settings: the settings by their keys.
    :ivar place: the text before a key in messages, such as the name of the section or ``label``.
    """

    uuid: str
    vcpus: str
    memory: str
    settings: Mapping[str, str]
    place: str


def made_uuid(*names: str) -> str:
    """Derive a uuid of version 5 from names, such as the names of the host and of the service.

    :param names: the names, none of which contains a slash.
    """
    return str(uuid.uuid5(_NAMESPACE, "/".join(names)))


def matches_any(name: str, patterns: Collection[str]) -> bool:
    """Whether a name equals one of the texts or matches one of the patterns (``*``, ``?``, ``[abc]``)."""
    return any(fnmatch.fnmatchcase(name, one) for one in patterns)


def read_wish(key: str, text: str) -> bool:
    """Whether a declaration makes its subject a guest: ``true`` or ``false``, in any case of letters.

    :raises BadDeclarationError: the text is neither.
    """
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise BadDeclarationError(f"{key}={printable_text(text)[:100]} is neither true nor false")
    return word == "true"


def parse_declaration(values: Mapping[str, str], keys: KeyNames) -> DeclaredSettings:
    """Parse declared settings, which are texts by key; an empty text stands for the default.

    :raises BadDeclarationError: the uuid, the number of CPUs or the memory cannot be used.
    """
    guest_uuid = values.get(keys.uuid, "")
    if guest_uuid:
        try:
            guest_uuid = str(uuid.UUID(guest_uuid))
        except ValueError as error:
            raise BadDeclarationError(f"{keys.uuid}={printable_text(guest_uuid)} is not a uuid") from error
    vcpus = _read_amount(values, keys.vcpus, MAX_VCPUS)
    memory = _read_amount(values, keys.memory, MAX_MEMORY_MB)
    declared: dict[str, Any] = {}
    problems: list[str] = []
    for key, text in values.items():
        if key in (keys.uuid, keys.vcpus, keys.memory):
            continue
        if key not in keys.settings:
            problems.append(f"{keys.place} {printable_text(key)} is not a setting of guests")
        elif text:
            try:
                declared[keys.settings[key]] = read_setting(keys.settings[key], text)
            except ValueError as error:
                problems.append(f"{keys.place} {key}={printable_text(text)} has no effect: {error}")
    if len(problems) > _MAX_PROBLEMS:
        problems = [*problems[:_MAX_PROBLEMS], f"{len(problems) - _MAX_PROBLEMS} more have no effect"]
    return DeclaredSettings(guest_uuid, vcpus or 1, declared, tuple(problems), memory)


def _read_amount(values: Mapping[str, str], key: str, largest: int) -> int:
    """The whole number that is declared for a key; 0 if the key is not declared."""
    text = values.get(key, "")
    if text and (not _NUMBER.match(text) or not 1 <= int(text) <= largest):
        raise BadDeclarationError(f"{key}={printable_text(text)} is not a whole number from 1 to {largest}")
    return int(text or 0)
