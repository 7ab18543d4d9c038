"""The lines of ``schemata`` and ``size`` files: `` L3:0=0ffff;1=fffff``, ``MB:0= 100;1= 100``.

Cache masks are hexadecimal, bandwidths and sizes decimal. The kernel pads names and values with blanks (since
4.13); ids are the kernel's, in any order and with gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from compute_agent.resctrl.masks import BadMaskError, Mask

CACHE_RESOURCES: Final = ("L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA")
BANDWIDTH_RESOURCES: Final = ("MB", "SMBA")

Lines = Mapping[str, Mapping[int, int]]


class BadSchemataError(ValueError):
    """A schemata text that cannot be read; the message quotes the line."""


@dataclass(frozen=True, slots=True)
class Schemata:
    """The values of some resources on some domains, all as numbers; not all of a group's need be there.

    ``lines[resource][id]`` is a cache mask's bits, or a bandwidth in the unit of the platform.
    """

    lines: Lines = field(default_factory=dict)

    def __post_init__(self) -> None:
        frozen = {name: MappingProxyType(dict(values)) for name, values in self.lines.items() if values}
        object.__setattr__(self, "lines", MappingProxyType(frozen))

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Every (resource, id, value)."""
        for name, values in self.lines.items():
            for domain, value in values.items():
                yield name, domain, value

    def get(self, resource: str, domain: int) -> int | None:
        """One value; None where it is not told."""
        return self.lines.get(resource, {}).get(domain)

    def ids(self, resource: str) -> tuple[int, ...]:
        """The domain ids of a resource, ascending; empty where there is no such line."""
        return tuple(sorted(self.lines.get(resource, ())))

    def updated(self, other: Schemata) -> Schemata:
        """These, with the values of ``other`` in place of its own."""
        names = {**self.lines, **other.lines}
        return Schemata({name: {**self.lines.get(name, {}), **other.lines.get(name, {})} for name in names})

    def changes_from(self, present: Schemata) -> Schemata:
        """The values of this that are not so in ``present``: what has to be written."""
        changed: dict[str, dict[int, int]] = {}
        for name, domain, value in self:
            if present.get(name, domain) != value:
                changed.setdefault(name, {})[domain] = value
        return Schemata(changed)

    def within(self, other: Schemata) -> Schemata:
        """The values of this for the resources and domains that ``other`` has, too."""
        kept: dict[str, dict[int, int]] = {}
        for name, domain, value in self:
            if other.get(name, domain) is not None:
                kept.setdefault(name, {})[domain] = value
        return Schemata(kept)

    def __str__(self) -> str:
        """The text to write: a line for each resource, domains ascending, each line ended."""
        return "".join(
            f"{name}:{';'.join(f'{d}={_value(name, v)}' for d, v in sorted(values.items()))}\n"
            for name, values in self.lines.items()
        )


def parse(text: str) -> Schemata:
    """The values of a schemata file. Resources of kernels to come are passed over.

    A group that is about to be pseudo-locked has ``uninitialized`` for its values: such lines are empty.

    :raises BadSchemataError:
    """
    return Schemata(
        {
            name: _values(line, values, hexadecimal=name in CACHE_RESOURCES)
            for line, name, values in _split(text)
            if name in CACHE_RESOURCES or name in BANDWIDTH_RESOURCES
        }
    )


def parse_sizes(text: str) -> Lines:
    """Bytes by resource and id of a ``size`` file.

    :raises BadSchemataError:
    """
    return {name: _values(line, values, hexadecimal=False) for line, name, values in _split(text)}


def _split(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, values = line.partition(":")
        if not colon:
            raise BadSchemataError(f"schemata line {line!r} has no colon")
        yield line, name.strip(), values.strip()


def _values(line: str, text: str, hexadecimal: bool) -> dict[int, int]:
    if text == "uninitialized":
        return {}
    found: dict[int, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        domain, equals, value = part.partition("=")
        try:
            if not equals:
                raise ValueError
            number = Mask.parse(value).bits if hexadecimal else int(value)
            found[int(domain)] = number
        except (ValueError, BadMaskError) as error:
            raise BadSchemataError(f"schemata line {line!r}: cannot read {part!r}") from error
    return found


def _value(resource: str, value: int) -> str:
    return f"{value:x}" if resource in CACHE_RESOURCES else str(value)
