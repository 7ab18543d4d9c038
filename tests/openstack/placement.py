"""The Placement service of a cloud with Keystone: that of this checkout, or OpenStack's."""

from pathlib import Path
from typing import Final

from benchmarks.reference import install
from benchmarks.servers import OpenStack, Ours, Service
from tests.keystone import PLACEMENT, Keystone
from tests.openstack.identity import authtoken

KINDS: Final = ("ours", "stock")
_WORKERS: Final = 1
_THREADS: Final = 4


class _BehindKeystone(Service):
    """A mixin that configures authentication with Keystone."""

    keystone: Keystone

    def _configure(self) -> None:
        self._config.write_text(
            f"[api]\nauth_strategy = keystone\n{authtoken(self.keystone, PLACEMENT, 'placement')}"
            f"[placement_database]\nconnection = {self._connection().replace('$', '$$')}\n"
        )


class _Ours(_BehindKeystone, Ours):
    """The service of this checkout."""


class _Stock(_BehindKeystone, OpenStack):
    """OpenStack Placement."""


def service(kind: str, database: str, folder: Path, keystone: Keystone) -> Service:
    """A service of one of the :data:`KINDS` on an empty database, not started yet.

    :raises benchmarks.reference.ReferenceMissing: OpenStack Placement cannot be installed.
    """
    made: _Ours | _Stock
    if kind == "ours":
        made = _Ours(database, folder, _WORKERS, _THREADS)
    else:
        made = _Stock(database, folder, _WORKERS, _THREADS, install())
    made.keystone = keystone
    return made
