"""The cost of waiting for the commits of other nodes: ``python -m benchmarks.galera_waiting``.

Two sides use one node of three in turns, one with ``mysql_wsrep_sync_wait = 7`` and one with 0. The program
measures the query before each answer, a reading transaction and a write. The other nodes are quiet, then they
write.
"""

import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa
from prettytable import PrettyTable

from benchmarks.measure import MIN_REPEATS, interleave_repeats
from placement.db import migration
from placement.db.database import ServiceDatabase
from placement.db.engine import PoolOptions
from placement.db.tables import change_buckets
from placement.exceptions import Unavailable
from tests.databases.galera import Galera

_SECONDS_PER_REPEAT: Final = 0.5

Action = Callable[[ServiceDatabase], object]


def _read(database: ServiceDatabase) -> None:
    with database.read() as conn:
        conn.execute(sa.select(change_buckets)).all()


ACTIONS: Final[dict[str, Action]] = {
    "the question before every answer": ServiceDatabase.position,
    "a reading transaction": _read,
    "a writing transaction": lambda database: database.write(lambda tx: tx.lock(["a provider"])),
}


def main() -> int:
    """Measure and print."""
    parser = ArgumentParser(prog="python -m benchmarks.galera_waiting", description=__doc__)
    parser.add_argument("--repeats", type=int, default=MIN_REPEATS)
    arguments = parser.parse_args()
    table = PrettyTable(["Other nodes", "What", "Waiting, ms", "Not waiting, ms", "Ratio"])
    table.align = "r"
    table.align["Other nodes"] = table.align["What"] = "l"
    with Galera() as cluster:
        own, *others = cluster.fresh_database()
        migration.upgrade_schema(own)
        sides = {
            name: ServiceDatabase(own, PoolOptions(wsrep_sync_wait=mask))
            for name, mask in (("7", 7), ("0", 0))
        }
        for load, urls in (("quiet", ()), ("write", others)):
            with _busy_writers(urls):
                for what, action in ACTIONS.items():
                    calls = {name: _repeat_action(action, database) for name, database in sides.items()}
                    medians = {
                        name: s.median_value or 0.0
                        for name, s in interleave_repeats(calls, arguments.repeats).items()
                    }
                    ratio = medians["7"] / medians["0"]
                    table.add_row([load, what, *(f"{medians[name]:.2f}" for name in "70"), f"{ratio:.2f}"])
        for database in sides.values():
            database.close()
    print(table)
    return 0


def _repeat_action(action: Action, database: ServiceDatabase) -> Callable[[], float]:
    """Return a function that repeats the action for a time and returns the milliseconds of one call."""

    def time_repeat() -> float:
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < _SECONDS_PER_REPEAT:
            action(database)
            count += 1
        return 1000 * spent / count

    return time_repeat


@contextmanager
def _busy_writers(urls: Sequence[str]) -> Iterator[None]:
    """Run a writer on each of these nodes, which locks a name of its own."""
    ended = threading.Event()

    def write(url: str) -> None:
        database = ServiceDatabase(url)
        while not ended.is_set():
            try:
                database.write(lambda tx: tx.lock([url]))
            except Unavailable:
                continue
        database.close()

    threads = [threading.Thread(target=write, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
