"""One request for a page: who looks, and at what."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final

from flask import Blueprint, Response, g, request

from placement.api import context
from placement.api.context import RequestContext
from placement.api.service import Service
from placement.exceptions import Forbidden
from placement.policies import aggregate, inventory, resource_provider, trait, usage

_SERVICE: Final = "placement.service"
HANDLERS: Final = "placement.console.handlers"
"""Where the environment has the handlers of the REST API."""

SEE_HOSTS: Final = (
    resource_provider.LIST,
    inventory.LIST,
    usage.PROVIDER_USAGES,
    trait.PROVIDER_LIST,
    aggregate.LIST,
)
"""What REST asks of who reads all that a page of hosts shows."""

Page = Callable[..., Response | str]


class Visit:
    """The present request: the service, and who looks."""

    def __init__(self) -> None:
        self.service: Service = request.environ[_SERVICE]
        self.visitor: RequestContext = context.of(request.environ)

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
        def handle(**arguments: Any) -> Response | str:
            visit = g.visit = Visit()
            visit.service.prepare()
            visit.require(rules)
            return route(visit, **arguments)

        blueprint.add_url_rule(path, route.__name__, handle, methods=list(methods))
        return route

    return decorate
