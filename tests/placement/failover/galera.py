"""Random faults of a Galera cluster, with services on different nodes."""

import random
import time
from contextlib import ExitStack
from pathlib import Path

from placement.db import migration
from tests.databases.balancer import Balancer, Health
from tests.databases.galera import Galera, Node
from tests.placement.failover.judge import FailoverLoad
from tests.placement.failover.outcome import FailoverOutcome, Fault
from tests.placement.failover.window_writer import make_writers
from tests.placement.serving import service
from tests.waits import wait_for

_SECONDS_TO_RETURN = 60.0


def run(folder: Path, faults: int, seed: int, *, workers: int = 2, options: str = "") -> FailoverOutcome:
    """Kill, freeze and isolate nodes under load, with ``faults`` faults in total."""
    rng = random.Random(seed)
    outcome = FailoverOutcome(f"Galera, 3 nodes, {faults} faults", seed)
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        cluster = stack.enter_context(Galera())
        urls = cluster.fresh_database()
        migration.upgrade_schema(urls[0])
        health = stack.enter_context(Health(cluster.nodes))
        services = []
        for number, url in enumerate(urls):
            own = folder / f"service-{number}"
            own.mkdir()
            address = stack.enter_context(Balancer(url, health, number))
            services.append(stack.enter_context(service(address.url, own, workers, database_options=options)))
        load = FailoverLoad(services, seed, make_bookers=make_writers(urls[0], seed))
        outcome.judge = load.judge
        with load:
            time.sleep(1)
            for _ in range(faults):
                outcome.faults.append(_one(rng, cluster))
                print(f"{outcome.faults[-1].kind} {load.judge.counts}", flush=True)
        outcome.excused = health.without_quorum
        load.check_books()
    return outcome


def _one(rng: random.Random, cluster: Galera) -> Fault:
    """Break a node. Wait until it is a member of the cluster again, and a moment longer."""
    node = rng.choice(cluster.nodes)
    fault = Fault(rng.choice(("kill", "pause", "partition")), time.monotonic())
    for_seconds = rng.uniform(0.2, 6)
    match fault.kind:
        case "kill":
            node.kill()
            time.sleep(for_seconds / 3)
            node.start()
        case "pause":
            node.pause()
            time.sleep(for_seconds)
            node.resume()
        case "partition":
            node.isolate(True)
            time.sleep(for_seconds)
            node.isolate(False)
    _wait(node)
    time.sleep(rng.uniform(0.5, 1.5))
    fault.ended = time.monotonic()
    return fault


def _wait(node: Node) -> None:
    def has_returned() -> bool:
        if node.has_ended():
            node.start()
        return node.is_ready()

    wait_for(has_returned, "the node comes back", evidence=node.status, seconds=_SECONDS_TO_RETURN)
