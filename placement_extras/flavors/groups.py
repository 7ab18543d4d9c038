"""Builds the groups of a request: one for each suffix in the extra specs, and one for each PCI device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import os_resource_classes
import os_traits

from placement.search.request import RequestGroup
from placement_extras.flavors.flavor import PciAlias, TranslationRules, refusal_error
from placement_extras.flavors.guest import FlavorGuest
from placement_extras.flavors.spelling import SPEC_OF_GROUP, FlavorWarnings

_STANDARD: Final = frozenset(os_resource_classes.STANDARDS)
"""The names of the standard resource classes."""


@dataclass(slots=True)
class _ResourceGroup:
    """The amounts and traits of one group, until the group is complete."""

    resources: dict[str, int] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)


class GroupBuilder:
    """Builds the groups of a request. Extra specs with invalid amounts or traits are ignored with a warning.

    :param own_classes: resource classes of this service that Nova does not have.
    """

    def __init__(self, own_classes: frozenset[str], warnings: FlavorWarnings) -> None:
        self._groups: dict[str, _ResourceGroup] = {"": _ResourceGroup()}
        self._policy: str | None = None
        self._suffixes_of_specs = 0
        self._classes = _STANDARD | own_classes
        self._warnings = warnings
        #: for each device, by the suffix of its group, the NUMA policy of its alias
        self.devices: dict[str, str | None] = {}

    def add_specs(self, specs: dict[str, str]) -> None:
        """Read the extra specs ``resources<suffix>:CLASS``, ``trait<suffix>:TRAIT`` and ``group_policy``."""
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
        # the groups are counted before groups of devices are added
        self._suffixes_of_specs = len(self._groups) - 1

    def _add_trait(self, key: str, name: str, value: str, suffix: str) -> None:
        group = self._group_of(suffix)
        if value == "required":
            group.required.add(name)
        elif value == "forbidden":
            group.forbidden.add(name)
        else:
            self._warnings.add(f"{key} cannot be {value!r}, only required or forbidden")

    def _add_amount(self, key: str, name: str, value: str, suffix: str) -> None:
        group = self._group_of(suffix)
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

    def _group_of(self, suffix: str) -> _ResourceGroup:
        return self._groups.setdefault(suffix, _ResourceGroup())

    def add_device(self, alias: PciAlias, traits: frozenset[str]) -> None:
        """Add a group for a device of an alias, with a suffix such as ``_PCI_0``.

        :param traits: required traits of the device, in addition to the traits of the alias.
        """
        # an extra spec of the flavor can already use a suffix of this form
        suffix = next(each for each in map("_PCI_{}".format, count()) if each not in self._groups)
        self._groups[suffix] = _ResourceGroup({alias.resource_class: 1}, set(alias.traits | traits))
        self.devices[suffix] = alias.numa_policy

    def set_amount(self, name: str, amount: int) -> None:
        """Set the amount of a resource class in the group without a suffix."""
        self._groups[""].resources[name] = amount

    def require_traits(self, *traits: str) -> None:
        """Require traits in the group without a suffix."""
        self._groups[""].required.update(traits)

    def forbid_trait(self, trait: str) -> None:
        """Forbid a trait in the group without a suffix."""
        self._groups[""].forbidden.add(trait)

    def has_amount(self, name: str) -> bool:
        """Return whether any group has an amount of this resource class. An amount of 0 counts, too."""
        return any(name in group.resources for group in self._groups.values())

    def group_policy(self) -> str | None:
        """Return the policy for groups with a suffix.

        A request needs a policy if it has several groups with a suffix. If two or more of these groups come
        from extra specs, the flavor has to name the policy. Otherwise the policy is "none" by default.
        """
        several = sum(group.suffix != "" for group in self.build_groups()) > 1
        return "none" if self._policy is None and several and self._suffixes_of_specs < 2 else self._policy

    def build_groups(self) -> tuple[RequestGroup, ...]:
        """Return all groups that are not empty; leave out amounts of 0."""
        return tuple(
            RequestGroup(
                suffix=suffix,
                # as in Nova, an amount of 0 removes the class from the request
                resources={name: amount for name, amount in group.resources.items() if amount},
                required=tuple(frozenset((trait,)) for trait in sorted(group.required)),
                forbidden=frozenset(group.forbidden),
            )
            for suffix, group in self._groups.items()
            if any(group.resources.values()) or group.required or group.forbidden
        )


SPEC: Final = "pci_passthrough:alias"
"""The extra spec that names the PCI devices of a guest."""
MAX_DEVICES: Final = 256
"""Maximum number of devices of a guest. Without a maximum, a short extra spec could ask for billions of
groups."""


def pci_aliases(said: Sequence[Mapping[str, str]]) -> tuple[PciAlias, ...]:
    """Convert the values of Nova's ``[pci] alias``; raise ValueError if two aliases have the same name."""
    found = tuple(map(_pci_alias, said))
    names = Counter(each.name for each in found)
    if several := [name for name, number in names.items() if number > 1]:
        # Nova allows several definitions of an alias, but the group of a device has only one resource class
        raise ValueError(
            f"[flavors] pci_alias: {', '.join(several)} occurs more than once; "
            "give the devices of one alias the same resource_class"
        )
    return found


def _pci_alias(said: Mapping[str, str]) -> PciAlias:
    # if the alias has no resource_class, Nova makes the name of the class from the ids of the device
    name = said.get("resource_class") or f"CUSTOM_PCI_{said['vendor_id']}_{said['product_id']}"
    name = name.upper()
    if name not in os_resource_classes.STANDARDS and not os_resource_classes.is_custom(name):
        # Nova turns any other text into the name of a custom class
        name = os_resource_classes.normalize_name(name)
    traits = said.get("traits", "").split(",") if said.get("traits") else []
    return PciAlias(said["name"].strip(), name, frozenset(map(_trait_name, traits)), said.get("numa_policy"))


def _trait_name(name: str) -> str:
    if os_traits.check_traits([name])[0]:
        return name
    # as in Nova, any other text becomes the name of a custom trait
    name = name.upper()
    return name if os_traits.is_custom(name) else str(os_traits.normalize_name(name))


def add_devices(groups: GroupBuilder, guest: FlavorGuest, rules: TranslationRules) -> None:
    """Add a group for each device that the flavor names.

    :raises InvalidRequest: an alias is unknown, or the extra spec is not a list of aliases.
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
        # an alias without a number also leads here, because int("") raises ValueError
        except ValueError:
            raise refusal_error(
                f"{SPEC} cannot be {spec!r}, only a list of aliases with numbers, as in gpu:2"
            ) from None
        found = known.get(name.strip())
        if found is None:
            raise refusal_error(
                f"there is no PCI alias {name.strip()!r} in [flavors] pci_alias of this service"
            )
        if count + len(asked) > MAX_DEVICES:  # the number is checked before groups are added
            raise refusal_error(f"{SPEC} asks for more than {MAX_DEVICES} devices")
        asked += [found] * count
    # as in Nova, the provider of a device also needs the trait OWNER_NOVA
    owner = frozenset(("OWNER_NOVA",) if rules.require_owner_nova else ())
    for each in asked:
        groups.add_device(each, owner)
