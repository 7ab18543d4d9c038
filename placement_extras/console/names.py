"""The page ``/console/names``: resource classes and traits, each with the number of its providers."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from flask import Blueprint, render_template, request, url_for

from placement.policies import rest
from placement.read_model.index import ProviderIndex
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console import page_request
from placement_extras.console.page_request import SEE_HOSTS, PageRequest, console_page

blueprint = Blueprint("names", __name__)

CUSTOM: Final = "CUSTOM_"
_PER_PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class NamedUse:
    """A resource class or trait, with the numbers of providers and hosts that have it."""

    name: str
    providers: int
    hosts: int

    @property
    def is_custom(self) -> bool:
        """Whether the name begins with ``CUSTOM_``. Clients can delete only such names."""
        return self.name.startswith(CUSTOM)


def count_uses(
    snapshot: ModelSnapshot, index: ProviderIndex[str], names: Iterable[str], text: str, *, used_only: bool
) -> list[NamedUse]:
    """Return the names that contain this text, sorted by descending number of providers."""
    # all names are in capitals, so upper() finds texts that visitors type in small letters, too
    found = [
        NamedUse(name, len(having), len(snapshot.roots_having(index, name).ids))
        for name in names
        if text.upper() in name
        for having in [index.get(name, _NO_PROVIDERS)]
        if having or not used_only
    ]
    return sorted(found, key=lambda each: (-each.providers, each.name))


_NO_PROVIDERS: Final[Set[int]] = frozenset()


@console_page(blueprint, "/console/names", *SEE_HOSTS, rest.LIST_CLASSES, rest.LIST_TRAITS)
def show_names(visit: PageRequest) -> str:
    """Show all names, or the names that contain a text."""
    text = page_request.text_of(request.args, "text")
    # without a search, only names in use are shown: most of the hundreds of standard traits are unused
    everything = "all" in request.args or bool(text)
    with visit.pinned_model() as (snapshot, names):
        classes = count_uses(snapshot, snapshot.by_class, names.classes, text, used_only=not everything)
        traits = count_uses(snapshot, snapshot.by_trait, names.traits, text, used_only=not everything)
    numbers: Mapping[str, int] = {"classes": len(names.classes), "traits": len(names.traits)}
    shown = (
        page_request.cut_page(classes, page_request.asked_page("classes"), _PER_PAGE),
        page_request.cut_page(traits, page_request.asked_page("traits"), _PER_PAGE),
    )

    def page_address(**changes: int) -> str:
        pages = {"classes": shown[0].page, "traits": shown[1].page, **changes}
        filters = {"text": text} if text else {"all": "1"} if everything else {}
        return f"{url_for('names.show_names')}?{urlencode({**filters, **pages})}"

    return render_template(
        "names.html",
        text=text,
        everything=everything,
        classes=shown[0],
        traits=shown[1],
        address_of_classes=lambda number: page_address(classes=number),
        address_of_traits=lambda number: page_address(traits=number),
        numbers=numbers,
    )
