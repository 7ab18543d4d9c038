"""One request for a page: who looks, and at what."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from flask import Blueprint, Response, g, request

from placement.api import context
from placement.api.context import RequestContext
from placement.api.service import PlacementService
from placement.exceptions import Forbidden
from placement.model.rows import NameTable
from placement.model.snapshot import ModelSnapshot
from placement.policies import aggregate, inventory, resource_provider, trait, usage

_SERVICE: Final = "placement.service"
HANDLERS: Final = "placement_extras.console.handlers"
"""Where the environment has the handlers of the REST API."""

SESSION: Final = "placement_extras.console.session"
"""Where it has the session of who has signed in."""
REFUSAL: Final = "placement_extras.console.refusal"
"""Where it has the error that keeps everybody from all pages."""

SEE_HOSTS: Final = (
    resource_provider.LIST,
    inventory.LIST,
    usage.PROVIDER_USAGES,
    trait.PROVIDER_LIST,
    aggregate.LIST,
)
"""What REST asks of who reads all that a page of hosts shows."""

Page = Callable[..., Response | str | tuple[str, int]]


@dataclass(frozen=True, slots=True)
class VisitorSession:
    """Who is signed in: the token, and names to be shown; ``secret`` is what the browser has."""

    secret: str
    token: str
    user: str
    project: str


def service_of(environ: Mapping[str, Any]) -> PlacementService:
    """Whose pages these are."""
    service: PlacementService = environ[_SERVICE]
    return service


class PageRequest:
    """The present request: the service, and who looks."""

    def __init__(self) -> None:
        self.service = service_of(request.environ)
        self.visitor: RequestContext = context.of(request.environ)

    @contextmanager
    def looking(self) -> Iterator[tuple[ModelSnapshot, NameTable]]:
        """All providers and names that were written before. Nobody waits for what is done with them.

        :raises placement.exceptions.Unavailable: the database does not answer.
        """
        model = self.service.model
        with model.fresh() as view:
            names = view.names
        with model.aside() as (snapshot, _):
            yield snapshot, names

    def require(self, rules: Iterable[str]) -> None:
        """Refuse whom one of the rules does not allow this.

        :raises Forbidden: naming the first such rule.
        """
        for rule in rules:
            self.service.enforcer.authorize(self.visitor, rule)

    def may(self, *rules: str) -> bool:
        """Whether all of the rules allow it."""
        try:
            self.require(rules)
        except Forbidden:
            return False
        return True


def page(
    blueprint: Blueprint, path: str, *rules: str, methods: tuple[str, ...] = ("GET",)
) -> Callable[[Page], Page]:
    """Make a function the route of a page that whom all the rules allow it may see.

    It is called with the :class:`Visit`, and with what the path names.
    """

    def decorate(route: Page) -> Page:
        @wraps(route)
        def handle(**arguments: Any) -> Response | str | tuple[str, int]:
            if REFUSAL in request.environ:
                raise request.environ[REFUSAL]
            visit = g.visit = PageRequest()
            visit.service.prepare()
            visit.require(rules)
            return route(visit, **arguments)

        blueprint.add_url_rule(path, route.__name__, handle, methods=list(methods))
        return route

    return decorate
