"""The adoption of a database of OpenStack Placement, and the way back: seconds (of CPU time), and memory.

python -m benchmarks.adopting [--allocations N] [sqlite] [postgresql] [mariadb]
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from prettytable import PrettyTable, TableStyle

from benchmarks.reference import ReferenceInstall, install_reference
from benchmarks.servers import OpenStack
from placement_extras.migration.stock_database import StockTables
from tests import databases
from tests.placement.running import Admin, application

_GUESTS_PER_HOST: Final = 20
_CLASSES: Final = (0, 1, 2)  # VCPU, MEMORY_MB, DISK_GB
_CHANGES: Final = 500
_MADE: Final = datetime(2026, 1, 1)
_BATCH: Final = 5_000
_FIRST: Final = ("resource_providers", "consumer_types")  # other tables refer to these


def uuid(kind: str, number: int) -> str:
    """Return a uuid that follows from a hexadecimal digit, for the kind of the object, and a number."""
    return f"{kind * 8}-0000-4000-8000-{number:012x}"


def rows(allocations: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a cloud of flat hosts, each with the name of its table.

    Each host has 20 guests, and each guest holds amounts of three resource classes.
    """
    guests = allocations // len(_CLASSES)
    hosts = -(-guests // _GUESTS_PER_HOST)
    made = {"created_at": _MADE, "updated_at": None}
    for number in range(1, 11):
        yield "projects", {"id": number, "external_id": f"project-{number}", **made}
        yield "users", {"id": number, "external_id": f"user-{number}", **made}
        yield "placement_aggregates", {"id": number, "uuid": uuid("b", number), **made}
    yield "consumer_types", {"id": 1, "name": "INSTANCE", **made}
    for host in range(1, hosts + 1):
        values = {"id": host, "uuid": uuid("a", host), "name": f"host-{host}", "generation": 7}
        parents = {"root_provider_id": host, "parent_provider_id": None}
        yield "resource_providers", {**values, **parents, **made}
    for host in range(1, hosts + 1):
        for name in _CLASSES:
            units = {"total": 1_000_000, "reserved": 0, "min_unit": 1, "max_unit": 1_000_000, "step_size": 1}
            place = {"resource_provider_id": host, "resource_class_id": name}
            yield "inventories", {**place, **units, "allocation_ratio": 1.5, **made}
        for trait in range(1, 31):
            yield "resource_provider_traits", {"resource_provider_id": host, "trait_id": trait, **made}
        yield (
            "resource_provider_aggregates",
            {
                "resource_provider_id": host,
                "aggregate_id": 1 + host % 10,
                **made,
            },
        )
    for guest in range(1, guests + 1):
        owner = {"project_id": 1 + guest % 10, "user_id": 1 + guest % 10, "consumer_type_id": 1}
        yield "consumers", {"id": guest, "uuid": uuid("c", guest), "generation": 1, **owner, **made}
        for name in _CLASSES:
            held = {"resource_provider_id": 1 + guest % hosts, "resource_class_id": name, "used": 4}
            yield "allocations", {"consumer_id": uuid("c", guest), **held, **made}


def write_cloud(url: str, allocations: int) -> None:
    """Write the rows of a cloud into the tables of a stock service."""
    tables = StockTables().metadata.tables
    engine = sa.create_engine(url)
    waiting: dict[str, list[Mapping[str, Any]]] = {}
    with engine.begin() as conn:
        for table, row in rows(allocations):
            batch = waiting.setdefault(table, [])
            batch.append(row)
            if len(batch) == _BATCH:
                _write_batches(conn, waiting, tables, (*_FIRST, table))
        _write_batches(conn, waiting, tables, (*_FIRST, *waiting))
    engine.dispose()


def _write_batches(
    conn: sa.Connection,
    waiting: dict[str, list[Mapping[str, Any]]],
    tables: Mapping[str, sa.Table],
    names: tuple[str, ...],
) -> None:
    """Write the waiting rows of these tables."""
    for name in names:
        if waiting.get(name):
            conn.execute(sa.insert(tables[name]), waiting[name])
            waiting[name].clear()


def claim_guests(url: str) -> None:
    """Claim for new guests over REST, as clients of an adopted cloud do."""
    admin = Admin(application(url))
    for number in range(_CHANGES):
        body = {
            "allocations": {uuid("a", 1 + number % 50): {"resources": {"VCPU": 1, "MEMORY_MB": 64}}},
            "project_id": "later",
            "user_id": "later",
            "consumer_type": "INSTANCE",
            "consumer_generation": None,
        }
        answer = admin("PUT", f"/allocations/{uuid('d', number)}", json=body)
        assert answer.status_code == 204, answer.text


def time_command(url: str, folder: Path, *arguments: str) -> str:
    """Run ``placement-manage``; return the elapsed seconds and the seconds of CPU time as text."""
    config = folder / "placement.conf"
    config.write_text(f"[placement_database]\nconnection = {url.replace('$', '$$')}\n")
    command = [sys.executable, "-m", "placement.cmd.manage", "--config-file", str(config), *arguments]
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{seconds:.1f} ({computed:.1f})"


def measure_database(kind: str, allocations: int, reference: ReferenceInstall) -> list[object]:
    """Measure one kind of database; return its row of the table."""
    with databases.create(kind, durable=True) as server, tempfile.TemporaryDirectory() as folder:
        url = server.fresh_database()
        with OpenStack(url, Path(folder), 1, 1, reference):
            pass  # the start creates the tables and the standard names of classes and traits
        write_cloud(url, allocations)
        seconds = [time_command(url, Path(folder), "db", "adopt")]
        seconds.append(time_command(url, Path(folder), "db", "abandon"))
        time_command(url, Path(folder), "db", "adopt")
        claim_guests(url)
        seconds.append(time_command(url, Path(folder), "db", "abandon", "--carry-back"))
    return [kind, allocations, *seconds]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocations", type=int, default=50_001)
    parser.add_argument("kinds", nargs="*", default=databases.KINDS)
    arguments = parser.parse_args()
    titles = [
        "database",
        "allocations",
        "adopt, s",
        "abandon, s",
        f"carry {2 * _CHANGES} allocations back, s",
    ]
    table = PrettyTable(titles, align="r")
    table.set_style(TableStyle.MARKDOWN)
    reference = install_reference()
    for kind in arguments.kinds:
        table.add_row(measure_database(kind, arguments.allocations, reference))
    print(table)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(f"The largest process took {peak} MiB.")


if __name__ == "__main__":
    main()
