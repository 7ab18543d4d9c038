"""``python -m``: a cloud of two hosts that stands while its tests are written.

It starts once. Each line of the standard input has arguments of pytest, such as ``-k watermark -x``. With
these, the tests of the doors run in that cloud, from the sources as they are then. The end of the input
ends the cloud.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.openstack.ground import ground
from tests.openstack.identity import LAB
from tests.openstack.two_hosts import STANDING, TwoHosts, two_hosts

_TESTS: Final = Path(__file__).with_name("test_doors.py")


@dataclass(frozen=True)
class _StandingCloud:
    """The plugin of pytest that has the cloud."""

    there: TwoHosts

    def pytest_configure(self, config: pytest.Config) -> None:
        """Put the cloud where the tests find it."""
        config.stash[STANDING] = self.there


def main() -> None:
    """Start the cloud and run the tests of each line."""
    with ground() as made:
        made.keystone.identity.user(LAB)
        with two_hosts(made) as there:
            print("The cloud stands.", flush=True)
            kept = frozenset(sys.modules)
            for line in sys.stdin:
                for name in set(sys.modules) - kept:
                    if name.startswith("tests."):
                        del sys.modules[name]
                status = pytest.main([str(_TESTS), "-q", *shlex.split(line)], [_StandingCloud(there)])
                print(f"pytest ended with {int(status)}: {line}", flush=True)


if __name__ == "__main__":
    main()
