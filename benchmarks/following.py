"""A worker's cost of following the changes of other workers: ``python -m benchmarks.following``.

The read model of a `numa` world is in this process. Some providers change in the database, and then a request
needs the current model. Times are milliseconds of CPU time of the requesting thread, without the time of the
database.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from benchmarks.servers import add_database_option
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS
from placement.db import buckets, migration
from placement.db.database import ServiceDatabase
from placement.db.tables import change_buckets, resource_providers
from placement.read_model.feed import ReadModel
from tests.databases import create

_CHANGES: Final = (0, 1, 5, 10, 50, 100, 500)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.following", description=__doc__)
    add_database_option(parser)
    parser.add_argument("--hosts", type=int, default=1_000, help="number of hosts; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=9, help="number of repeats; default: %(default)s")
    options = parser.parse_args(arguments)
    print("| changed providers | CPU ms | CPU µs for each |")
    print("| ---: | ---: | ---: |")
    with create(options.database) as server:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        load_directly(url, WORLDS["numa"], options.hosts)
        engine, model = sa.create_engine(url), ReadModel(ServiceDatabase(url))
        with model.fresh_view() as view:
            providers = [(each.id, each.uuid) for each in view.snapshot]
        rng = random.Random(7)
        for count in _CHANGES:
            taken = []
            for _ in range(options.repeats):
                change_providers(engine, rng.sample(providers, min(count, len(providers))))
                began = time.thread_time()
                with model.fresh_view():
                    taken.append(1000 * (time.thread_time() - began))
            middle = statistics.median(taken)
            shown = f"{middle:.3g} ({min(taken):.3g} to {max(taken):.3g})"
            print(f"| {count} | {shown} | {1000 * middle / count:.0f} |" if count else f"| 0 | {shown} | |")
        engine.dispose()
    return 0


def change_providers(engine: sa.Engine, providers: Sequence[tuple[int, str]]) -> None:
    """Stamp providers, each given by id and uuid, as a write of their usage does."""
    counters, table = change_buckets.c, resource_providers
    with engine.begin() as conn:
        for provider_id, uuid in providers:
            bucket = buckets.bucket_of(uuid)
            moved = {"counter": counters.counter + buckets.random_step()}
            conn.execute(sa.update(change_buckets).where(counters.id == bucket).values(moved))
            stamp = sa.select(counters.counter).where(counters.id == bucket).scalar_subquery()
            values = {"generation": table.c.generation + 1, "change_seq": stamp}
            conn.execute(sa.update(table).where(table.c.id == provider_id).values(values))


if __name__ == "__main__":
    raise SystemExit(main())
