"""Rates of claims, of their release, and of whole schedulings, by one and by several clients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.clients import Clients, Tally, Work
from benchmarks.measure import Result, Sample, interleave
from benchmarks.queries import SCHEDULING
from benchmarks.servers import Service
from benchmarks.worlds import WORLDS, uuid_of

MANY_CLIENTS: Final = 8
_FEW_HOSTS: Final = 5
_FLAVOURS: Final = 8
_WARMING: Final = 0.3

#: what the clients do to the service on a port for so many seconds
Load = Callable[[Clients, int, float], list[Work]]


def claims(services: Mapping[str, Service], scale: float, repeats: int, seconds: float) -> Iterator[Result]:
    """Claims a second on the loaded `flat` world: on all hosts and on few, by one client and by many."""
    every = [uuid_of(f"flat-{number}") for number in range(WORLDS["flat"].size(scale))]
    for clients, goal in ((1, None), (MANY_CLIENTS, 8.0)):
        for hosts in (every, every[:_FEW_HOSTS]):

            def claim(crew: Clients, port: int, duration: float, hosts: Sequence[str] = hosts) -> list[Work]:
                return crew.claim(port, hosts, duration)

            sides = _measure(services, claim, clients, repeats, seconds)
            name = f"{_clients(clients)} on {len(hosts):,} hosts"
            yield _result("claims", name, "claims/s", sides, goal)
            releases = {side: Sample(tuple(each.releases)) for side, each in sides.items()}
            yield Result("releases", name, "releases/s", releases["ours"], releases.get("reference"))


def schedulings(
    services: Mapping[str, Service], world: str, repeats: int, seconds: float
) -> Iterator[Result]:
    """Schedulings a second: candidates with limit=50 for one of a few flavours, then a random claim.

    Of ours also in one call.
    """
    flavours = [SCHEDULING[world].path(number) for number in range(_FLAVOURS)]
    for clients in (1, MANY_CLIENTS):

        def schedule(crew: Clients, port: int, duration: float) -> list[Work]:
            return crew.schedule(port, flavours, duration)

        sides = _measure(services, schedule, clients, repeats, seconds)
        yield _result("end to end", f"{world}, {_clients(clients)}", "schedulings/s", sides, 50.0)

        def claim(crew: Clients, port: int, duration: float) -> list[Work]:
            return crew.claim_found(port, flavours, duration)

        sides = _measure({"ours": services["ours"]}, claim, clients, repeats, seconds)
        name = f"{world}, {_clients(clients)}, POST /ext/v1/claims"
        yield _result("end to end", name, "schedulings/s", sides, None)


def _clients(number: int) -> str:
    return f"{number} client{'s' * (number > 1)}"


@dataclass
class _Side:
    """One service under load; calling it is a repeat, after which everything is given back."""

    service: Service
    load: Load
    crew: Clients
    seconds: float
    tally: Tally = field(default_factory=Tally)
    cpu_seconds: float = 0.0
    rates: Sample = field(default_factory=Sample)
    releases: list[float] = field(default_factory=list)

    def warm_up(self) -> None:
        """A short repeat that does not count."""
        self._release(self.load(self.crew, self.service.port, _WARMING))

    def __call__(self) -> float:
        """Successes per second."""
        cpu = self.service.cpu_seconds()
        work = self.load(self.crew, self.service.port, self.seconds)
        self.cpu_seconds += self.service.cpu_seconds() - cpu
        self.tally.add(work)
        rate = self._release(work)
        if rate is not None:
            self.releases.append(rate)
        return sum(each.rate for each in work)

    def _release(self, work: Sequence[Work]) -> float | None:
        consumers = [consumer for each in work for consumer in each.consumers]
        if not consumers:
            return None
        return sum(each.rate for each in self.crew.release(self.service.port, consumers))

    @property
    def cpu(self) -> float | None:
        """Milliseconds of the workers' CPU for one success."""
        return 1000 * self.cpu_seconds / self.tally.done if self.tally.done else None


def _measure(
    services: Mapping[str, Service], load: Load, clients: int, repeats: int, seconds: float
) -> dict[str, _Side]:
    with Clients(clients) as crew:
        sides = {name: _Side(service, load, crew, seconds) for name, service in services.items()}
        for side in sides.values():
            side.warm_up()
        for name, sample in interleave(sides, repeats).items():
            sides[name].rates = sample
    return sides


def _result(section: str, name: str, unit: str, sides: Mapping[str, _Side], goal: float | None) -> Result:
    return Result(
        section,
        name,
        unit,
        sides["ours"].rates,
        sides["reference"].rates if "reference" in sides else None,
        goal=goal,
        cpu={side: each.cpu for side, each in sides.items()},
        notes={side: each.tally.shown() for side, each in sides.items()},
    )
