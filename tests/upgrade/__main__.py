"""Upgrades from each recorded release under load, and back: ``python -m tests.upgrade`` prints a table."""

import logging
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from tests.builds import BuildFailed
from tests.databases import ServerMissing
from tests.upgrade.outcome import draw_table
from tests.upgrade.releases import current_release, install_release, read_releases
from tests.upgrade.scenario import KINDS, run


def main() -> int:
    """Run the upgrades; return 1 if anything was lost, moved or forgotten."""
    parser = ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="|".join(KINDS), help="default: all")
    parser.add_argument("--releases", type=int, default=2, help="how many releases to start from; default 2")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request to the Identity service
    try:
        new = install_release(current_release())
        olds = [install_release(each) for each in read_releases()[: arguments.releases]]
    except BuildFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    outcomes, missing = [], []
    for old in olds:
        for kind in arguments.kinds or KINDS:
            with tempfile.TemporaryDirectory(prefix="placement-upgrade-") as folder:
                try:
                    outcomes.append(run(Path(folder), old, new, kind))
                except ServerMissing as error:
                    missing.append(f"{kind}: {error}")
    print(draw_table(outcomes))
    print(*missing, sep="\n", file=sys.stderr)
    return 1 if missing or any(each.problems for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
