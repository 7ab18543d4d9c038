"""``/console/settings``: which hosts work by the settings of their group, as agents say in attributes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, render_template, request

from placement.console.fleet import natural
from placement.console.visit import SEE_HOSTS, Visit, page
from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.policies import ext

blueprint = Blueprint("settings", __name__)

GROUP: Final = "fleet.group"
GENERATION: Final = "fleet.generation"
TROUBLE: Final = "fleet.trouble"
SEE_SETTINGS: Final = (*SEE_HOSTS, ext.ATTRIBUTES)
"""What REST asks of who reads the same there."""

_MAX_GROUPS: Final = 100
_PER_PAGE: Final = 50
_MAX_PAGE: Final = 10**6


@dataclass(frozen=True, slots=True)
class Follower:
    """How a host stands to the settings of its group; ``generation`` is 0 if it has none of them."""

    root: Provider
    group: str
    generation: int
    trouble: str


@dataclass(frozen=True, slots=True)
class Group:
    """A group of hosts: the newest generation that any works by, and how many do not."""

    name: str
    newest: int
    hosts: int
    behind: int
    in_trouble: int


@dataclass(frozen=True, slots=True)
class Settings:
    """All groups, and of the hosts that are behind or in trouble one page."""

    groups: tuple[Group, ...]
    more_groups: int
    without: int
    apart: int
    rows: tuple[Follower, ...]
    page: int
    pages: int


def follower(root: Provider, members: Iterable[Provider]) -> Follower | None:
    """The host with this root and these providers, the first of which that says so; None if none does."""
    for each in members:
        group = each.attributes.get(GROUP)
        if isinstance(group, str):
            generation, trouble = each.attributes.get(GENERATION), each.attributes.get(TROUBLE, "")
            number = int(generation) if isinstance(generation, int | float) and generation > 0 else 0
            return Follower(root, group, number, str(trouble))
    return None


def show(snapshot: Snapshot, number: int) -> Settings:
    """How hosts stand to their settings. A page behind the last one is the last one."""
    trees = snapshot.whole_trees().values()
    found = [one for tree in trees if (one := follower(tree.root, tree.members)) is not None]
    by_group: dict[str, list[Follower]] = {}
    for one in found:
        by_group.setdefault(one.group, []).append(one)
    newest = {name: max(one.generation for one in some) for name, some in by_group.items()}
    groups = [
        Group(
            name,
            newest[name],
            len(some),
            sum(one.generation < newest[name] for one in some),
            sum(bool(one.trouble) for one in some),
        )
        for name, some in sorted(by_group.items(), key=lambda each: natural(each[0]))
    ]
    apart = [one for one in found if one.trouble or one.generation < newest[one.group]]
    apart.sort(key=lambda one: natural(one.root.name))
    pages = max(1, -(-len(apart) // _PER_PAGE))
    number = min(max(1, number), pages)
    return Settings(
        groups=tuple(groups[:_MAX_GROUPS]),
        more_groups=max(0, len(groups) - _MAX_GROUPS),
        without=len(trees) - len(found),
        apart=len(apart),
        rows=tuple(apart[(number - 1) * _PER_PAGE : number * _PER_PAGE]),
        page=number,
        pages=pages,
    )


@page(blueprint, "/console/settings", *SEE_SETTINGS)
def show_settings(visit: Visit) -> str:
    """Groups, and the hosts that do not follow theirs."""
    asked = request.args.get("page", "")
    number = min(int(asked[:9]), _MAX_PAGE) if asked.isascii() and asked.isdigit() else 1
    with visit.service.model.fresh() as view:
        shown = show(view.snapshot, number)
    return render_template("settings.html", settings=shown)
