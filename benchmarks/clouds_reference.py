"""A cloud in the database of OpenStack Placement, imported into this service, to compare both services."""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson
import sqlalchemy as sa

from benchmarks.http import ServiceConnection
from benchmarks.measure import ComparisonResult, LatencyMeasurement, interleave_repeats
from benchmarks.mixed import AGGREGATES, DEVICES, TRAITS, Guest, MixedCloud
from benchmarks.mixed_queries import query_paths
from benchmarks.reference import install_reference
from benchmarks.servers import MeasuredService, OpenStack, OurService, create_database_server
from benchmarks.worlds import Tree, uuid_of
from placement_extras.migration.stock_database import StockTables

_MADE: Final = {"created_at": datetime(2026, 1, 1), "updated_at": None}
_FIRST_OWN: Final = 10_000
"""The first id of custom resource classes and traits."""
_BATCH: Final = 5_000
_WORKERS: Final = 2
_THREADS: Final = 4
_SETS_COMPARED: Final = 2
"""Number of queries for which the answers are compared."""


def measure_queries(
    cloud: MixedCloud, hosts: int, limit: int, queries: Sequence[str], repeats: int, seconds: float
) -> Iterator[ComparisonResult]:
    """Yield a result for each family of queries, measured on PostgreSQL in turns."""
    with ExitStack() as stack:
        server = stack.enter_context(create_database_server("postgresql"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placement-benchmark-")))
        source, target = server.fresh_database(), server.fresh_database()
        theirs = OpenStack(source, folder, _WORKERS, _THREADS, install_reference())
        with theirs:
            pass  # the start creates the tables and the standard names of classes and traits
        fill_database(source, cloud, hosts)
        ours = OurService(target, folder, _WORKERS, _THREADS)
        with ours:
            pass
        import_from(ours, source)
        services: dict[str, MeasuredService] = {"ours": ours, "reference": theirs}
        for service in services.values():
            stack.callback(service.stop)
            service.start()
        for name in queries:
            yield _measure_query(services, name, cloud, hosts, limit, repeats, seconds)


def _measure_query(
    services: Mapping[str, MeasuredService],
    name: str,
    cloud: MixedCloud,
    hosts: int,
    limit: int,
    repeats: int,
    seconds: float,
) -> ComparisonResult:
    with ExitStack() as stack:
        connections = {
            side: stack.enter_context(ServiceConnection(service.port, seconds))
            for side, service in services.items()
        }
        latencies = {
            side: LatencyMeasurement(
                connection, query_paths(name, cloud, limit, cloud.seed), services[side].cpu_seconds
            )
            for side, connection in connections.items()
        }
        samples = interleave_repeats(latencies, repeats, failed=lambda side: services[side].restart_service())
        notes: dict[str, Any] = {}
        if all(sample.failure is None for sample in samples.values()):
            notes = _compare_answers(
                connections, islice(query_paths(name, cloud, limit, cloud.seed + 1), _SETS_COMPARED), limit
            )
    return ComparisonResult(
        f"{cloud.name}, {hosts:,} hosts, limit={limit}",
        name,
        "ms",
        samples["ours"],
        samples["reference"],
        cpu_goal=20 if not cloud.alike else 40,
        cpu={side: each.median_cpu for side, each in latencies.items()},
        notes=notes,
    )


def _compare_answers(
    connections: Mapping[str, ServiceConnection], questions: Iterator[str], limit: int
) -> dict[str, Any]:
    """Return whether the answers of both services are equal, and their numbers of candidates.

    Our service may find more. The reference leaves out hosts that get all resources of the group without a
    suffix from sharing providers ("sharing-alone" in the table of deviations).
    """
    same, found, more = True, [], 0
    for path in questions:
        ours, theirs = [
            {
                _comparable_candidate(each)
                for each in orjson.loads(connection.expect_success("GET", path))["allocation_requests"]
            }
            for connection in connections.values()
        ]
        found.append(len(ours))
        more += len(ours - theirs) if len(ours) < limit else len(ours) - len(theirs)
        same &= len(theirs) <= len(ours) and (len(ours) == limit or theirs <= ours)
    return {"same answer": same, "candidates": statistics.mean(found), "more than the reference": more}


def _comparable_candidate(candidate: Any) -> bytes:
    mappings = {suffix: sorted(uuids) for suffix, uuids in candidate["mappings"].items()}
    return orjson.dumps({**candidate, "mappings": mappings}, option=orjson.OPT_SORT_KEYS)


def import_from(ours: MeasuredService, source: str) -> None:
    """Import the database of the stock service into this service."""
    config = str(ours.log_path.with_name("placement.conf"))
    command = [sys.executable, "-m", "placement.cmd.manage", "--config-file", config, "import", source]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def fill_database(url: str, cloud: MixedCloud, hosts: int) -> None:
    """Write a cloud into the tables of a stock service, which has its standard names."""
    tables = StockTables()
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        writing = _CloudWriter(conn, tables)
        for pool in cloud.storage_pools():
            writing.add_tree([pool])
        for tree, guests in cloud.hosts(hosts):
            writing.add_tree(tree)
            writing.add_guests(guests)
        writing.write()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(sa.text("ANALYZE"))
    engine.dispose()


class _CloudWriter:
    """Writes rows in batches, and knows the ids of the written rows."""

    def __init__(self, conn: sa.Connection, tables: StockTables) -> None:
        self._conn = conn
        self._tables = tables
        self._rows: dict[sa.Table, list[dict[str, Any]]] = {
            table: [] for table in tables.metadata.tables.values()
        }
        self._providers: dict[str, int] = {}
        self._guests = 0
        self._aggregates = {uuid: number for number, uuid in enumerate(AGGREGATES, 1)}
        for uuid, number in self._aggregates.items():
            self._add(tables.aggregates, id=number, uuid=uuid)
        for table in (tables.projects, tables.users):
            self._add(table, id=1, external_id="mixed")
        self._classes = self._known_names(tables.classes, DEVICES)
        self._traits = self._known_names(tables.traits, TRAITS)

    def _known_names(self, table: sa.Table, own: Sequence[str]) -> dict[str, int]:
        known = {row.name: row.id for row in self._conn.execute(sa.select(table.c.id, table.c.name))}
        for number, name in enumerate(own, _FIRST_OWN):
            known[name] = number
            self._add(table, id=number, name=name)
        return known

    def add_tree(self, tree: Tree) -> None:
        """Add all providers of a host."""
        tables = self._tables
        for each in tree:
            own = self._providers[each.uuid] = len(self._providers) + 1
            parent = None if each.parent is None else self._providers[each.parent]
            root = self._providers[tree[0].uuid]
            self._add(
                tables.providers, id=own, uuid=each.uuid, name=each.name, generation=1,
                root_provider_id=root, parent_provider_id=parent,
            )  # fmt: skip
            for name, values in each.inventories.items():
                defaults = {"reserved": 0, "min_unit": 1, "step_size": 1, "allocation_ratio": 1.0}
                self._add_owned(
                    tables.inventories, own, resource_class_id=self._classes[name], **{**defaults, **values}
                )
            for trait in each.traits:
                self._add_owned(tables.provider_traits, own, trait_id=self._traits[trait])
            for aggregate in each.aggregates:
                self._add_owned(tables.provider_aggregates, own, aggregate_id=self._aggregates[aggregate])

    def add_guests(self, guests: Sequence[Guest]) -> None:
        """Add guests, each a consumer with its allocations."""
        for guest in guests:
            self._guests += 1
            uuid = uuid_of(f"mixed-guest-{self._guests}")
            self._add(
                self._tables.consumers,
                uuid=uuid,
                project_id=1,
                user_id=1,
                generation=1,
                consumer_type_id=None,
            )
            for provider, amounts in guest.items():
                for name, amount in amounts.items():
                    self._add_owned(
                        self._tables.allocations, self._providers[provider],
                        consumer_id=uuid, resource_class_id=self._classes[name], used=amount,
                    )  # fmt: skip

    def _add_owned(self, table: sa.Table, provider: int, **values: Any) -> None:
        self._add(table, resource_provider_id=provider, **values)

    def _add(self, table: sa.Table, **values: Any) -> None:
        self._rows[table].append({**values, **_MADE})
        if len(self._rows[table]) == _BATCH:
            self.write()

    def write(self) -> None:
        """Write all waiting rows; the providers come first, because other rows refer to them."""
        for table in (self._tables.providers, *self._rows):
            if self._rows[table]:
                self._conn.execute(sa.insert(table), self._rows[table])
                self._rows[table].clear()
