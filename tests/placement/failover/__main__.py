"""Causes faults of databases under load: ``python -m tests.placement.failover`` prints a table of the
results.
"""

import random
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

from tests.databases import ServerMissing
from tests.placement.failover import galera, postgresql
from tests.placement.failover.outcome import SECONDS_REFUSED, SECONDS_STAYED, FailoverOutcome

RUNS: dict[str, Callable[[Path, int, int], FailoverOutcome]] = {
    "galera": galera.run,
    "postgresql": postgresql.run,
}


def main() -> int:
    """Cause the chosen faults; return 1 if any check has failed."""
    parser = ArgumentParser(prog="python -m tests.placement.failover", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="|".join(RUNS), help="default: all")
    parser.add_argument("--faults", type=int, default=30, help="how many of each; default 30")
    parser.add_argument("--seed", type=int, help="of an earlier run, to break the same things again")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(RUNS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    good = True
    for kind in arguments.kinds or RUNS:
        with tempfile.TemporaryDirectory(prefix="placement-failover-") as folder:
            try:
                outcome = RUNS[kind](Path(folder), arguments.faults, seed)
            except ServerMissing as error:
                print(f"{kind}: {error}", file=sys.stderr)
                good = False
                continue
        print(outcome.table(), flush=True)
        good &= not outcome.wrong
        good &= outcome.longest_refusal() <= SECONDS_REFUSED and outcome.stayed <= SECONDS_STAYED
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
