"""PCI devices by alias: one group of a request for each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import os_resource_classes
import os_traits

from placement_extras.flavors.flavor import PciAlias, TranslationRules, refused
from placement_extras.flavors.groups import GroupBuilder
from placement_extras.flavors.guest import FlavorGuest

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
