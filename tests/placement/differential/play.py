"""Sends requests to both services one after the other and compares all answers."""

from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from placement_extras.shadow.comparison import OrphanConsumers, explain_difference, find_differences
from placement_extras.shadow.exchange import is_write
from tests.placement.differential.services import NEWEST, Exchange, Request, ServicePair, ShadowAnswer

_TOLD: Final = 30  # number of requests shown before a difference


class Unexplained(AssertionError):
    """The answers of the services differ, and the table of deviations does not document the difference."""


@dataclass
class Play:
    """A conversation with both services.

    ``deviations`` are the names of the deviations found. After a deviation the databases may differ, which
    later requests must take into account.
    """

    pair: ServicePair
    #: whether a request can be wrong in several ways, so that the services may name one each
    several_faults: bool = False
    deviations: list[str] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    left_behind: OrphanConsumers = field(default_factory=OrphanConsumers)

    def ask(self, request: Request) -> ShadowAnswer:
        """Send the request to both services, compare the answers, and return the answer of OpenStack
        Placement.

        :raises Unexplained: the answers differ, and no documented deviation explains the difference
        """
        exchange = self.pair.ask(request)
        self.exchanges.append(exchange)
        if is_write(request.method):
            self.left_behind.record_write(request.method, request.path, request.body, exchange.theirs.status)
        for difference in find_differences(exchange):
            name = "order" if self.several_faults and difference.what == "words" else None
            name = name or explain_difference(exchange, difference, self.left_behind)
            if name is None:
                raise Unexplained("\n".join([str(request), str(difference), "before it:", *self._story()]))
            self.deviations.append(name)
        return exchange.theirs

    def differ(
        self, method: str, path: str, body: Any = None, version: str | None = NEWEST, **more: Any
    ) -> Exchange:
        """Send a request to which the services answer differently because of a documented deviation.

        :raises AssertionError: the answers are the same
        """
        exchange = self.pair.ask(Request(method, path, body, version, **more))
        self.exchanges.append(exchange)
        assert find_differences(exchange), f"{exchange.request}: both answered {exchange.ours}"
        return exchange

    def __call__(
        self, method: str, path: str, body: Any = None, version: str | None = NEWEST, **more: Any
    ) -> ShadowAnswer:
        """Send a request like :meth:`ask`, from its parts."""
        return self.ask(Request(method, path, body, version, **more))

    def generation(self, provider: str) -> int:
        """Read the generation of a provider, which has to be the same in both services; -1 without such a
        provider.
        """
        answer = self("GET", f"/resource_providers/{provider}")
        return int(answer.body["generation"]) if answer.status == 200 else -1

    def consumer_generation(self, consumer: str) -> int | None:
        """Read the generation of a consumer, None without such a consumer."""
        generation: int | None = self("GET", f"/allocations/{consumer}").body.get("consumer_generation")
        return generation

    def _story(self) -> list[str]:
        told = [each for each in self.exchanges[:-1] if each.request.method != "GET"][-_TOLD:]
        return [f"{each.theirs.status} {each.ours.status} {each.request}" for each in told]


@dataclass
class Names:
    """Unique names for one test."""

    number: int
    providers: list[str] = field(init=False)
    consumers: list[str] = field(init=False)
    aggregates: list[str] = field(init=False)
    traits: list[str] = field(init=False)
    classes: list[str] = field(init=False)
    projects: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.providers = [self._uuid(1, each) for each in range(5)]
        self.consumers = [self._uuid(2, each) for each in range(4)]
        self.aggregates = [self._uuid(3, each) for each in range(3)]
        self.traits = [f"CUSTOM_T{self.number}_{each}" for each in range(3)]
        self.classes = [f"CUSTOM_C{self.number}_{each}" for each in range(2)]
        self.projects = [f"project-{self.number}-{each}" for each in range(2)]

    def _uuid(self, kind: int, each: int) -> str:
        return str(UUID(int=(self.number << 80) | (kind << 40) | (each + 1)))

    def name(self, provider: str) -> str:
        """Return the default name of a provider."""
        return f"host-{self.number}-{self.providers.index(provider)}"
