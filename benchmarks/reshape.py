"""A reshape of 200 guests from flat VCPU to PCPU of their NUMA nodes: number of requests, and seconds.

python -m benchmarks.reshape [ours] [stock]
"""

import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prettytable import PrettyTable, TableStyle

from benchmarks.http import CLAIM_OWNER
from compute_agent import conf as agent_conf
from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.report.capacity import CpuLocation
from compute_agent.report.client import PlacementClient
from compute_agent.report.reporter import HostReporter
from compute_agent.report.reshape import InfeasibleReshape
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.servers import running

GUESTS, VCPUS, MEMORY_MB = 200, 2, 1024
ROOT = "11111111-0000-4000-8000-000000000000"
TOPOLOGY = machine(packages=2, nodes=4, cores=32, threads=2, memory_kib=64 << 20)  # 512 CPUs on 8 nodes


class CountingClient(PlacementClient):
    """Counts requests by method."""

    requests: Counter[str]

    def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: dict[str, str], shape: Any
    ) -> Any:
        self.requests[method] += 1
        return super()._send(method, url, body, headers, shape)


def host_tree(shape: str, dedicated: str | None) -> ProviderTree:
    """Return the providers of the host."""
    shared = None if dedicated is None else "400-511"
    sets = resolve_cpu_sets(CpuOptions(cpu_dedicated_set=dedicated, cpu_shared_set=shared), TOPOLOGY)
    return derive_provider_tree(
        TOPOLOGY, sets, InventorySettings(provider_tree=shape, disk_gb=1000), ROOT, "host"
    )


def guest_uuid(number: int) -> str:
    """Return the consumer uuid of a guest."""
    return f"22222222-0000-4000-8000-{number:012d}"


def measure_server(kind: str, folder: Path) -> list[list[object]]:
    """Return rows for one server: a step, requests of each kind, seconds."""
    with running(kind, folder) as url:
        ini = folder / "agent.ini"
        ini.write_text(f"[placement]\nauth_type = admin_token\nendpoint = {url}\ntoken = admin\n")
        client = CountingClient.from_conf(agent_conf.load([], [str(ini)]))
        client.requests = Counter()
        reporter = HostReporter(client, {}, lambda owned: None)
        reporter.report_tree(host_tree("flat", None))
        for number in range(GUESTS):
            body = {
                "allocations": {ROOT: {"resources": {"VCPU": VCPUS, "MEMORY_MB": MEMORY_MB}}},
                **CLAIM_OWNER,
            }
            client.send_request("PUT", f"/allocations/{guest_uuid(number)}", body)

        numa = host_tree("numa", "0-399")
        zones = {node.uuid: node.cpus for node in numa.nodes}
        locations = {
            guest_uuid(number): CpuLocation(
                own=frozenset(range(VCPUS * number, VCPUS * (number + 1))), pinned_vcpus=VCPUS
            )
            for number in range(GUESTS)
        }
        rows = []
        for name, step in (
            ("plan", lambda: reporter.plan_reshape(numa, locations, zones)),
            ("reshape", lambda: reporter.reshape_tree(numa, locations, zones)),
            ("report after it", lambda: reporter.report_tree(numa)),
            ("again", lambda: reporter.report_tree(numa)),
        ):
            client.requests.clear()
            start = time.perf_counter()
            outcome = step()
            seconds = time.perf_counter() - start
            assert not isinstance(outcome, InfeasibleReshape), outcome
            methods = ", ".join(f"{count} {method}" for method, count in sorted(client.requests.items()))
            rows.append([kind, name, client.requests.total(), methods, f"{seconds:.2f}"])
        held = [client.get_allocations(guest_uuid(number)).resources for number in range(GUESTS)]
        assert all("PCPU" in amounts for of_guest in held for amounts in of_guest.values())
        assert all(ROOT not in of_guest for of_guest in held)
        return rows


def main() -> None:
    """Measure and print."""
    logging.disable()
    table = PrettyTable(["server", "step", "requests", "of which", "seconds"], align="l")
    table.set_style(TableStyle.MARKDOWN)
    for kind in sys.argv[1:] or ["ours", "stock"]:
        with tempfile.TemporaryDirectory() as folder:
            table.add_rows(measure_server(kind, Path(folder)))
    print(table)


if __name__ == "__main__":
    main()
