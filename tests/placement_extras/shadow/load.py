"""Sends random requests through `placement-shadow` for an hour, from several clients at a time.

`python -m tests.placement_extras.shadow.load` prints the report, and fails if the services differ in more
than the documented deviations. With a single client no requests overlap, so all answers are compared.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.reference import install_reference
from placement_extras.shadow.report import report_table
from tests import databases
from tests.placement.differential import generator
from tests.placement.differential.generator import Generator
from tests.placement.differential.play import Names
from tests.placement.differential.services import ServiceClient
from tests.placement_extras.shadow.processes import RunningShadow, ShadowTalk, services, shadow

_IN_A_WORLD: Final = 150
_PAUSE: Final = 0.02


@dataclass
class ShadowLoad:
    """The state that all clients share: the number of requests left, and the objects that requests name."""

    shadow: RunningShadow
    left: int
    seed: int
    sent: int = 0
    worlds: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, number: int) -> None:
        """Run one client. Clients with neighbouring numbers use every second object together."""
        chosen = random.Random(f"{self.seed}-{number}")
        with ServiceClient(self.shadow.port) as client:
            talk, world = ShadowTalk(client), 0
            while self._goes_on(talk):
                world += 1
                meets = world % 2 == 0
                names = Names(world * 1000 + (number // 2 if meets else 500 + number))
                requests = Generator(chosen.randrange(2**32), names, talk)  # type: ignore[arg-type]  # the generator uses the generations only
                for request in requests.setting():
                    talk.ask(request)
                for _ in range(_IN_A_WORLD):
                    talk.ask(requests.request())
                    time.sleep(chosen.random() * _PAUSE)

    def _goes_on(self, talk: ShadowTalk) -> bool:
        with self.lock:
            self.sent += talk.requests
            self.left -= talk.requests
            talk.requests = 0
            return self.left > 0


def main() -> int:
    """Send the requests; return 1 if the services differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.placement_extras.shadow.load", description=__doc__)
    parser.add_argument("--requests", type=int, default=36_000)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--database", choices=databases.KINDS, default="postgresql")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--mistakes", action="store_true", help="some requests are wrong")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    if not arguments.mistakes:
        generator.MUTATED = generator.UNKNOWN = 0.0  # type: ignore[misc]  # constants are changed for the whole program
    with (
        tempfile.TemporaryDirectory() as folder,
        databases.create(arguments.database) as server,
        services(server, Path(folder), install_reference()) as both,
        shadow(*both, Path(folder), "--stock-database", both[0]._url, "--copy-after", "5") as running,
    ):
        load = ShadowLoad(running, arguments.requests, arguments.seed)
        threads = [threading.Thread(target=load.work, args=(each,)) for each in range(arguments.clients)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{load.sent} requests in {time.monotonic() - began:.0f} s")
        report = running.compared(load.sent)
    print(report_table(report), end="")
    return 1 if report["differences"] or not (report["in_step"] or arguments.mistakes) else 0


if __name__ == "__main__":
    sys.exit(main())
