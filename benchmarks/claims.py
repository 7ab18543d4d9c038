"""The time of claims in one call: ``python -m benchmarks.claims``.

Each client sends ``POST /ext/v1/claims`` again as soon as it has its answer, at 10,000 hosts of the world
``nested``. The program prints claims a second, percentiles of the times, the longest time, and the workers'
CPU time for a claim. It can also measure another checkout in turns, on a database of its own in the same
server. On a machine with other work, turns and CPU time say more than elapsed time.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients import ClientPool
from benchmarks.queries import SCHEDULING
from benchmarks.servers import OurService, add_database_option, create_database_server
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS
from placement.db import migration

_FLAVOURS = [SCHEDULING["nested"].path(number) for number in range(8)]
_WARMING = 1.0
_TURNS = 4


class _OtherCheckout(OurService):
    """The service of the code in another folder."""

    def __init__(self, home: Path, url: str, folder: Path, workers: int, threads: int) -> None:
        super().__init__(url, folder, workers, threads)
        self._checkout = home

    def _working_folder(self) -> Path:
        return self._checkout


@dataclass
class _ClaimSide:
    """One service, with the milliseconds of each answer, and the milliseconds of CPU time of all turns."""

    service: OurService
    milliseconds: list[float] = field(default_factory=list)
    cpu: float = 0.0
    rates: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    def take_turn(self, crew: ClientPool, seconds: float) -> None:
        """Claim for some seconds, then release all claims."""
        cpu = self.service.cpu_seconds()
        done = crew.claim_found(self.service.port, _FLAVOURS, seconds)
        self.cpu += 1000 * (self.service.cpu_seconds() - cpu)
        self.rates.append(sum(each.success_rate for each in done))
        for each in done:
            self.milliseconds += [1000 * seconds for seconds in each.latencies]
            self.answers += each.answers
        crew.release(self.service.port, [consumer for each in done for consumer in each.consumers])

    def describe(self) -> str:
        """Return all results in one line."""
        if not self.milliseconds:
            return f"no claim succeeded: {dict(self.answers)}"
        times = sorted(self.milliseconds)
        median, p95, p99 = (times[int(len(times) * share)] for share in (0.5, 0.95, 0.99))
        refused = {status: count for status, count in self.answers.items() if not status.startswith("2")}
        return (
            f"{sum(self.rates) / len(self.rates):6.0f} claims/s, "
            f"{self.cpu / len(times):5.2f} ms of CPU each, "
            f"median {median:5.1f} ms, p95 {p95:5.1f}, p99 {p99:5.1f}, longest {times[-1]:5.1f}, "
            f"of {len(times):,}" + (f"; refused: {refused}" if refused else "")
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    add_database_option(top)
    top.add_argument(
        "--trees", type=int, default=10_000, help="number of trees of providers; default: %(default)s"
    )
    top.add_argument(
        "--clients", type=int, nargs="+", default=(1, 8), help="numbers of clients; default: 1 and 8"
    )
    top.add_argument(
        "--seconds", type=float, default=10.0, help="seconds of each number of clients; default: %(default)s"
    )
    top.add_argument("--workers", type=int, default=2, help="number of workers; default: %(default)s")
    top.add_argument("--threads", type=int, default=4, help="threads of each worker; default: %(default)s")
    top.add_argument("--beside", type=Path, metavar="FOLDER", help="another checkout to measure in turns")
    options = top.parse_args(arguments)
    server = create_database_server(options.database)
    homes = [Path(__file__).parents[1], *([options.beside.resolve()] if options.beside else [])]
    with server, tempfile.TemporaryDirectory(prefix="placement-claims-") as folder, ExitStack() as stack:
        services: dict[Path, OurService] = {}
        for home in homes:
            url = server.fresh_database()
            migration.upgrade_schema(url)
            load_directly(url, WORLDS["nested"], options.trees)
            service = _OtherCheckout(home, url, Path(folder), options.workers, options.threads)
            services[home] = stack.enter_context(service)
        with ClientPool(4 * options.workers) as crew:  # enough clients that each worker reads its model
            for service in services.values():
                crew.warm_up(service.port)
                _ClaimSide(service).take_turn(crew, min(_WARMING, options.seconds))
        for clients in options.clients:
            sides = {home: _ClaimSide(service) for home, service in services.items()}
            with ClientPool(clients) as crew:
                for _ in range(_TURNS):
                    for side in sides.values():
                        side.take_turn(crew, options.seconds / _TURNS)
            for home, side in sides.items():
                print(f"{clients} client{'s' * (clients > 1)}, {home}: {side.describe()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
