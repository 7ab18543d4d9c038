"""Upgrades from each recorded release under load, and back: ``python -m tests.upgrade`` prints a table.

The newest release is installed from its wheel and from its Debian packages, an older one from its wheel.
"""

import logging
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from tests.builds import BuildFailed
from tests.databases import ServerMissing
from tests.upgrade.outcome import UpgradeOutcome, draw_table
from tests.upgrade.releases import (
    InstalledRelease,
    Source,
    current_release,
    install_release,
    read_releases,
)
from tests.upgrade.scenario import KINDS, run


def main() -> int:
    """Run the upgrades; return 1 if anything was lost, moved or forgotten."""
    parser = ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="|".join(KINDS), help="default: all")
    parser.add_argument("--releases", type=int, default=2, help="how many releases to start from; default 2")
    parser.add_argument(
        "--sources",
        nargs="+",
        choices=get_args(Source),
        default=get_args(Source),
        help="how releases are installed; default: from wheels, the newest also from Debian packages",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request to the Identity service
    try:
        pairs = list(_installed_pairs(arguments.releases, arguments.sources))
    except BuildFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    outcomes: list[UpgradeOutcome] = []
    missing: list[str] = []
    try:
        for old, new in pairs:
            for kind in arguments.kinds or KINDS:
                with tempfile.TemporaryDirectory(prefix="placement-upgrade-") as folder:
                    try:
                        outcomes.append(run(Path(folder), old, new, kind))
                    except ServerMissing as error:
                        missing.append(f"{kind}: {error}")
    finally:  # the table is printed also after an upgrade that could not be completed
        print(draw_table(outcomes))
    print(*missing, sep="\n", file=sys.stderr)
    return 1 if missing or any(each.problems for each in outcomes) else 0


def _installed_pairs(
    number: int, sources: Sequence[Source]
) -> Iterator[tuple[InstalledRelease, InstalledRelease]]:
    """Install releases, and yield each with the current one: the newest of each source, older ones once."""
    for at, release in enumerate(read_releases()[:number]):
        for source in sources if at == 0 else sources[:1]:
            yield install_release(release, source), install_release(current_release(), source)


if __name__ == "__main__":
    sys.exit(main())
