"""Rates of claims, of their release, and of whole schedulings, by one and by several clients."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.clients import ClientPool, ClientWork, WorkTally
from benchmarks.measure import ComparisonResult, RepeatSample, interleave_repeats
from benchmarks.queries import SCHEDULING
from benchmarks.servers import MeasuredService
from benchmarks.worlds import WORLDS, uuid_of

MANY_CLIENTS: Final = 8
_FEW_HOSTS: Final = 5
_FLAVOURS: Final = 8
_WARMING: Final = 0.3
_TOO_MUCH: Final = "/allocation_candidates?resources=VCPU:1000000"

#: runs clients on the service of a port for some seconds
Load = Callable[[ClientPool, int, float], list[ClientWork]]


def measure_claims(
    services: Mapping[str, MeasuredService], scale: float, repeats: int, seconds: float
) -> Iterator[ComparisonResult]:
    """Yield claims a second on the loaded `flat` world: on all hosts and on few, by one client and by many.

    Then all guests migrate, and then their allocations are deleted.
    """
    every = [uuid_of(f"flat-{number}") for number in range(WORLDS["flat"].size(scale))]
    for clients, goal in ((1, None), (MANY_CLIENTS, 1.0)):
        for hosts in (every, every[:_FEW_HOSTS]):

            def claim_load(
                crew: ClientPool, port: int, duration: float, hosts: Sequence[str] = hosts
            ) -> list[ClientWork]:
                return crew.claim_resources(port, hosts, duration)

            sides = _measure_sides(services, claim_load, clients, repeats, seconds, hosts)
            name = f"{_clients_title(clients)} on {len(hosts):,} hosts"
            for section, unit, multiple in (
                ("claims", "claims/s", 15),
                ("migrations", "migrations/s", None),
                ("releases", "releases/s", 8),
            ):
                phases = {side: each.phases[section] for side, each in sides.items()}
                yield _make_result(section, name, unit, phases, goal and multiple and goal * multiple)


def measure_schedulings(
    services: Mapping[str, MeasuredService], world: str, repeats: int, seconds: float
) -> Iterator[ComparisonResult]:
    """Yield schedulings a second: candidates with limit=50 for one of a few flavours, then a random claim.

    Our service also claims in one call.
    """
    flavours = [SCHEDULING[world].path(number) for number in range(_FLAVOURS)]
    for clients in (1, MANY_CLIENTS):

        def schedule_load(crew: ClientPool, port: int, duration: float) -> list[ClientWork]:
            return crew.schedule_guests(port, flavours, duration)

        sides = _measure_sides(services, schedule_load, clients, repeats, seconds)
        phases = {side: each.phases["claims"] for side, each in sides.items()}
        yield _make_result(
            "end to end", f"{world}, {_clients_title(clients)}", "schedulings/s", phases, goal=50.0
        )

        def claim_load(crew: ClientPool, port: int, duration: float) -> list[ClientWork]:
            return crew.claim_found(port, flavours, duration)

        sides = _measure_sides({"ours": services["ours"]}, claim_load, clients, repeats, seconds)
        phases = {side: each.phases["claims"] for side, each in sides.items()}
        name = f"{world}, {_clients_title(clients)}, POST /ext/v1/claims"
        yield _make_result("end to end", name, "schedulings/s", phases)


def measure_answers(
    services: Mapping[str, MeasuredService], repeats: int, seconds: float
) -> Iterator[ComparisonResult]:
    """Yield answers a second to many clients: the version document, and a query that no host can serve."""
    for name, path, goal in (("version document", "/", 3.0), ("no candidate", _TOO_MUCH, 10.0)):

        def ask_load(crew: ClientPool, port: int, duration: float, path: str = path) -> list[ClientWork]:
            return crew.ask_repeatedly(port, path, duration)

        sides = _measure_sides(services, ask_load, MANY_CLIENTS, repeats, seconds)
        phases = {side: each.phases["claims"] for side, each in sides.items()}
        yield _make_result("answers", f"{name}, {_clients_title(MANY_CLIENTS)}", "answers/s", phases, goal)


def _clients_title(number: int) -> str:
    return f"{number} client{'s' * (number > 1)}"


@dataclass
class _WorkPhase:
    """One kind of work of one service, in all repeats."""

    rates: list[float] = field(default_factory=list)
    tally: WorkTally = field(default_factory=WorkTally)
    cpu_seconds: float = 0.0

    @property
    def cpu_per_success(self) -> float | None:
        """Return the milliseconds of the workers' CPU for one success."""
        return 1000 * self.cpu_seconds / self.tally.success_count if self.tally.success_count else None


@dataclass
class _LoadSide:
    """One service under load. A call is a repeat, which ends with the release of all claims.

    If ``hosts`` is not empty, the consumers migrate among them before that.
    """

    service: MeasuredService
    load: Load
    crew: ClientPool
    seconds: float
    hosts: Sequence[str] = ()
    phases: defaultdict[str, _WorkPhase] = field(default_factory=lambda: defaultdict(_WorkPhase))

    def warm_up(self) -> None:
        """Run a short repeat that does not count."""
        self._run_repeat(_WARMING)
        self.phases.clear()

    def __call__(self) -> float:
        """Run a repeat; return the successes per second."""
        return self._run_repeat(self.seconds)

    def _run_repeat(self, seconds: float) -> float:
        work, rate = self._time_phase("claims", lambda: self.load(self.crew, self.service.port, seconds))
        consumers = [consumer for each in work for consumer in each.consumers]
        if self.hosts and consumers:
            placed = list(zip(consumers, [host for each in work for host in each.hosts], strict=True))
            moved, _ = self._time_phase(
                "migrations", lambda: self.crew.migrate_guests(self.service.port, placed, self.hosts)
            )
            consumers += [consumer for each in moved for consumer in each.consumers]
        if consumers:
            self._time_phase("releases", lambda: self.crew.release(self.service.port, consumers))
        return rate

    def _time_phase(self, name: str, work: Callable[[], list[ClientWork]]) -> tuple[list[ClientWork], float]:
        phase = self.phases[name]
        cpu = self.service.cpu_seconds()
        done = work()
        phase.cpu_seconds += self.service.cpu_seconds() - cpu
        phase.tally.add(done)
        rate = sum(each.success_rate for each in done)
        phase.rates.append(rate)
        return done, rate


def _measure_sides(
    services: Mapping[str, MeasuredService],
    load: Load,
    clients: int,
    repeats: int,
    seconds: float,
    hosts: Sequence[str] = (),
) -> dict[str, _LoadSide]:
    with ClientPool(clients) as crew:
        sides = {name: _LoadSide(service, load, crew, seconds, hosts) for name, service in services.items()}
        for side in sides.values():
            side.warm_up()
        interleave_repeats(sides, repeats)
    return sides


def _make_result(
    section: str,
    name: str,
    unit: str,
    phases: Mapping[str, _WorkPhase],
    cpu_goal: float | None = None,
    goal: float | None = None,
) -> ComparisonResult:
    samples = {side: RepeatSample(tuple(each.rates)) for side, each in phases.items()}
    return ComparisonResult(
        section,
        name,
        unit,
        samples["ours"],
        samples.get("reference"),
        goal=goal,
        cpu_goal=cpu_goal,
        cpu={side: each.cpu_per_success for side, each in phases.items()},
        notes={side: each.tally.describe() for side, each in phases.items()},
    )
