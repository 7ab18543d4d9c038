"""Gathers the groups of a request: amounts and traits by suffix, and a group for each PCI device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import os_resource_classes
import os_traits

from placement.search.request import RequestGroup
from placement_extras.flavors.flavor import PciAlias, TranslationRules, refused
from placement_extras.flavors.guest import FlavorGuest
from placement_extras.flavors.spelling import SPEC_OF_GROUP, FlavorWarnings

_STANDARD: Final = frozenset(os_resource_classes.STANDARDS)


@dataclass(slots=True)
class _ResourceGroup:
    resources: dict[str, int] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)


class GroupBuilder:
    """Gathers them. Extra specs that are no amount of a class and no trait are ignored, with a warning.

    :param own_classes: that this service has beside those of Nova.
    """

    def __init__(self, own_classes: frozenset[str], warnings: FlavorWarnings) -> None:
        self._groups: dict[str, _ResourceGroup] = {"": _ResourceGroup()}
        self._policy: str | None = None
        self._suffixes_of_specs = 0
        self._classes = _STANDARD | own_classes
        self._warnings = warnings

    def add_specs(self, specs: dict[str, str]) -> None:
        """What extra specs ask for: ``resources<suffix>:CLASS``, ``trait<suffix>:TRAIT``, a policy."""
        for key, value in specs.items():
            if key == "group_policy":
                if value in ("none", "isolate"):
                    self._policy = value
                else:
                    self._warnings.add(f"group_policy cannot be {value!r}, only none or isolate")
            elif match := SPEC_OF_GROUP.fullmatch(key):
                kind, suffix, name = match.groups(default="")
                if kind == "trait":
                    self._add_trait(key, name, value, suffix)
                else:
                    self._add_amount(key, name, value, suffix)
        self._suffixes_of_specs = len(self._groups) - 1

    def _add_trait(self, key: str, name: str, value: str, suffix: str) -> None:
        group = self._group(suffix)
        if value == "required":
            group.required.add(name)
        elif value == "forbidden":
            group.forbidden.add(name)
        else:
            self._warnings.add(f"{key} cannot be {value!r}, only required or forbidden")

    def _add_amount(self, key: str, name: str, value: str, suffix: str) -> None:
        group = self._group(suffix)
        if not name.startswith("CUSTOM_") and name not in self._classes:
            self._warnings.add(f"{key} names no resource class", name.upper(), sorted(self._classes))
            return
        try:
            amount = int(value)
        except ValueError:
            amount = -1
        if amount < 0:
            self._warnings.add(f"{key} cannot be {value!r}, only a number from 0 on")
        else:
            group.resources[name] = amount

    def _group(self, suffix: str) -> _ResourceGroup:
        return self._groups.setdefault(suffix, _ResourceGroup())

    def add_device(self, name: str, traits: frozenset[str]) -> None:
        """One of this class with these traits, in a group of its own: ``_PCI_0`` and so on."""
        suffix = next(each for each in map("_PCI_{}".format, count()) if each not in self._groups)
        self._groups[suffix] = _ResourceGroup({name: 1}, set(traits))

    def set_amount(self, name: str, amount: int) -> None:
        """Of this class so much is wanted, in the group without a suffix."""
        self._groups[""].resources[name] = amount

    def require(self, *traits: str) -> None:
        """Have the group without a suffix need these traits."""
        self._groups[""].required.update(traits)

    def forbid(self, trait: str) -> None:
        """Have the group without a suffix forbid this trait."""
        self._groups[""].forbidden.add(trait)

    def has(self, name: str) -> bool:
        """Whether some group says how much of a class is wanted, be it nothing."""
        return any(name in group.resources for group in self._groups.values())

    def policy(self) -> str | None:
        """The policy for groups with a suffix; a flavor that names several of them itself has to name it."""
        several = sum(group.suffix != "" for group in self.made()) > 1
        return "none" if self._policy is None and several and self._suffixes_of_specs < 2 else self._policy

    def made(self) -> tuple[RequestGroup, ...]:
        """The groups that ask for something, without amounts of nothing."""
        return tuple(
            RequestGroup(
                suffix=suffix,
                resources={name: amount for name, amount in group.resources.items() if amount},
                required=tuple(frozenset((trait,)) for trait in sorted(group.required)),
                forbidden=frozenset(group.forbidden),
            )
            for suffix, group in self._groups.items()
            if any(group.resources.values()) or group.required or group.forbidden
        )


SPEC: Final = "pci_passthrough:alias"
MAX_DEVICES: Final = 256
"""Of a guest, so that nobody asks for a number of groups that has no end."""


def aliases(said: Sequence[Mapping[str, str]]) -> tuple[PciAlias, ...]:
    """Aliases as Nova's ``[pci] alias`` has them, in Placement's names.

    :raises ValueError: two have the same name.
    """
    found = tuple(map(_alias, said))
    names = Counter(each.name for each in found)
    if several := [name for name, number in names.items() if number > 1]:
        raise ValueError(
            f"[flavors] pci_alias: {', '.join(several)} is there more than once; "
            "have the devices of one alias be of one resource_class"
        )
    return found


def _alias(said: Mapping[str, str]) -> PciAlias:
    name = said.get("resource_class") or f"CUSTOM_PCI_{said['vendor_id']}_{said['product_id']}"
    name = name.upper()
    if name not in os_resource_classes.STANDARDS and not os_resource_classes.is_custom(name):
        name = os_resource_classes.normalize_name(name)
    traits = said.get("traits", "").split(",") if said.get("traits") else []
    return PciAlias(said["name"].strip(), name, frozenset(map(_trait, traits)))


def _trait(name: str) -> str:
    if os_traits.check_traits([name])[0]:
        return name
    name = name.upper()
    return name if os_traits.is_custom(name) else str(os_traits.normalize_name(name))


def add_devices(groups: GroupBuilder, guest: FlavorGuest, rules: TranslationRules) -> None:
    """Have each device that the flavor names be a group of its own.

    :raises InvalidRequest: there is no such alias, or the extra spec is no list of them.
    """
    spec = guest.specs.get(SPEC)
    if spec is None:
        return
    known = {each.name: each for each in rules.pci_aliases}
    asked: list[PciAlias] = []
    for part in spec.split(","):
        name, _, number = part.partition(":")
        try:
            count = int(number)
        except ValueError:
            raise refused(
                f"{SPEC} cannot be {spec!r}, only a list of aliases with numbers, as in gpu:2"
            ) from None
        found = known.get(name.strip())
        if found is None:
            raise refused(f"there is no PCI alias {name.strip()!r} in [flavors] pci_alias of this service")
        if count + len(asked) > MAX_DEVICES:
            raise refused(f"{SPEC} asks for more than {MAX_DEVICES} devices")
        asked += [found] * count
    owner = frozenset(("OWNER_NOVA",) if rules.require_owner_nova else ())
    for each in asked:
        groups.add_device(each.resource_class, each.traits | owner)
