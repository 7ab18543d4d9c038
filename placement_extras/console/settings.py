"""The page ``/console/settings``: whether hosts apply the settings of their group, as agents report.

Each version of the settings of a group has a number, its *generation*. The generation of the group is the
newest generation that at least a tenth of its hosts, and at least two hosts, have applied. So one agent with
wrong settings or a wrong report does not make all other hosts look outdated. Hosts with a newer generation
are *ahead* until enough hosts have applied that generation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from flask import Blueprint, render_template, url_for

from placement.policies import ext
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import page_request
from placement_extras.console.fleet import natural_order
from placement_extras.console.page_request import SEE_HOSTS, ListPage, PageRequest, console_page

blueprint = Blueprint("settings", __name__)

GROUP: Final = "fleet.group"
"""The attribute with the group of a host."""
GENERATION: Final = "fleet.generation"
"""The attribute with the generation of the settings that a host has applied."""
TROUBLE: Final = "fleet.trouble"
"""The attribute in which an agent describes why its host does not apply newer settings."""
SEE_SETTINGS: Final = (*SEE_HOSTS, ext.ATTRIBUTES)
"""The policy rules that the REST API requires to show the same attributes."""

_GROUPS_PER_PAGE: Final = 50
_PER_PAGE: Final = 50
_QUORUM: Final = 10
"""A generation can be the generation of a group if at least one in ten (this number) of the group's hosts has
applied it.
"""
_MIN_QUORUM: Final = 2
_MAX_GENERATION: Final = 2**53
"""Largest integer that JSON represents exactly."""


@dataclass(frozen=True, slots=True)
class SettingsFollower:
    """A host, its group, and the generation of the settings that the host has applied (0: no settings)."""

    root: Provider
    group: str
    generation: int
    trouble: str
    common: int = 0
    """The generation of the settings of the host's group (:func:`common_generation`)."""


@dataclass(frozen=True, slots=True)
class SettingsGroup:
    """A group of hosts with its generation, and the numbers of hosts that are behind, ahead or in trouble."""

    name: str
    common: int
    hosts: int
    behind: int
    ahead: int
    in_trouble: int


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """A page of groups, and a page of the hosts that are behind, ahead or in trouble (``apart``).

    ``without`` is the number of hosts without a group.
    """

    groups: ListPage[SettingsGroup]
    without: int
    apart: ListPage[SettingsFollower]


def find_follower(root: Provider, members: Iterable[Provider]) -> SettingsFollower | None:
    """Return the group and the generation of a host, from the first provider with a group, or None."""
    for each in members:
        group = each.attributes.get(GROUP)
        if isinstance(group, str):
            generation, trouble = each.attributes.get(GENERATION), each.attributes.get(TROUBLE, "")
            # clients can write any value into the attribute
            number = generation if isinstance(generation, int | float) and generation > 0 else 0
            return SettingsFollower(root, group, int(min(number, _MAX_GENERATION)), str(trouble))
    return None


def common_generation(generations: Iterable[int]) -> int:
    """Compute the generation of a group from the generations of its hosts (at least one)."""
    ordered = sorted(generations, reverse=True)
    quorum = max(_MIN_QUORUM, -(-len(ordered) // _QUORUM))
    return ordered[min(quorum, len(ordered)) - 1]


def make_page(snapshot: ModelSnapshot, number: int = 1, number_of_groups: int = 1) -> SettingsPage:
    """Return one page of groups and one page of hosts. A number above the last page selects the last page."""
    trees = snapshot.whole_trees().values()
    found = [one for tree in trees if (one := find_follower(tree.root, tree.members)) is not None]
    by_group: dict[str, list[SettingsFollower]] = {}
    for one in found:
        by_group.setdefault(one.group, []).append(one)
    at = {name: common_generation(one.generation for one in some) for name, some in by_group.items()}
    groups = [
        SettingsGroup(
            name,
            at[name],
            len(some),
            sum(one.generation < at[name] for one in some),
            sum(one.generation > at[name] for one in some),
            sum(bool(one.trouble) for one in some),
        )
        for name, some in sorted(by_group.items(), key=lambda each: natural_order(each[0]))
    ]
    apart = [
        replace(one, common=at[one.group]) for one in found if one.trouble or one.generation != at[one.group]
    ]
    apart.sort(key=lambda one: natural_order(one.root.name))
    return SettingsPage(
        groups=page_request.cut_page(groups, number_of_groups, _GROUPS_PER_PAGE),
        without=len(trees) - len(found),
        apart=page_request.cut_page(apart, number, _PER_PAGE),
    )


@console_page(blueprint, "/console/settings", *SEE_SETTINGS)
def show_settings(visit: PageRequest) -> str:
    """Show the groups, and the hosts that do not apply the settings of their group."""
    with visit.pinned_model() as (snapshot, _):
        shown = make_page(snapshot, page_request.asked_page(), page_request.asked_page("groups"))
    return render_template(
        "settings.html",
        settings=shown,
        address_of_groups=lambda number: url_for("settings.show_settings", groups=number),
        address_of_hosts=lambda number: url_for(
            "settings.show_settings", page=number, groups=shown.groups.page
        ),
    )
