"""Random promotions of a PostgreSQL standby server under running services. The old primary server returns as
the standby.
"""

import random
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psycopg

from placement.db import migration
from tests.databases.standby import StandbyPair
from tests.placement.failover.judge import FailoverLoad
from tests.placement.failover.outcome import FailoverOutcome, Fault
from tests.placement.failover.window_writer import make_writers
from tests.placement.serving import service

_OLDEST: Final = """
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - backend_start)), 0), pg_is_in_recovery()
FROM pg_stat_activity WHERE datname LIKE 'placement%'
"""


def run(folder: Path, faults: int, seed: int, *, workers: int = 2) -> FailoverOutcome:
    """Stop the primary server under load, ``faults`` times in total."""
    rng = random.Random(seed)
    outcome = FailoverOutcome(f"PostgreSQL, primary and synchronous standby, {faults} promotions", seed)
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        pair = stack.enter_context(StandbyPair())
        url = pair.fresh_database()
        migration.upgrade_schema(url)
        services = []
        for number in range(3):
            own = folder / f"service-{number}"
            own.mkdir()
            services.append(stack.enter_context(service(url, own, workers)))
        load = FailoverLoad(services, seed, make_bookers=make_writers(url, seed))
        outcome.judge = load.judge
        looking = threading.Thread(target=_look, args=(pair, outcome), daemon=True)
        with load:
            looking.start()
            time.sleep(1)
            for _ in range(faults):
                outcome.faults.append(_one(rng, pair, outcome))
                print(f"{outcome.faults[-1].kind} {load.judge.counts}", flush=True)
        looking.join()
        load.check_books()
    return outcome


def _one(rng: random.Random, pair: StandbyPair, outcome: FailoverOutcome) -> Fault:
    """Stop the primary server, promote the standby, and bring the old primary back as the new standby."""
    fault = Fault(rng.choice(("crash", "shutdown", "freeze")), time.monotonic())
    match fault.kind:
        case "crash":
            pair.primary.kill()
        case "shutdown":
            pair.primary.stop()
        case "freeze":
            pair.primary.pause()
            time.sleep(rng.uniform(0.2, 3))
            pair.primary.kill()  # the old primary must be gone before a promotion
    time.sleep(rng.uniform(0, 1))
    pair.fail_over()
    outcome.excused.append((fault.began, time.monotonic()))
    time.sleep(rng.uniform(0, 1))
    pair.restore()
    time.sleep(rng.uniform(0.5, 1.5))
    fault.ended = time.monotonic()
    return fault


def _look(pair: StandbyPair, outcome: FailoverOutcome) -> None:
    """Measure how long connections of services stay on a standby server."""
    assert outcome.judge is not None
    while not outcome.judge.stopped.wait(0.1):
        for member in (pair.primary, pair.standby):
            with suppress(psycopg.Error), member.connected() as connection:
                row = connection.execute(_OLDEST).fetchone()
                if row is not None and row[1]:
                    outcome.stayed = max(outcome.stayed, float(row[0]))
