"""The Placement service of a cloud with Keystone: that of this checkout, or OpenStack's."""

from pathlib import Path
from typing import Final

from benchmarks.reference import install_reference
from benchmarks.servers import MeasuredService, OpenStack, OurService
from tests.keystone import PLACEMENT, Keystone
from tests.openstack.identity import authtoken

KINDS: Final = ("ours", "stock")
_WORKERS: Final = 1
_THREADS: Final = 4


class _BehindKeystone(MeasuredService):
    """A mixin that configures authentication with Keystone."""

    keystone: Keystone

    def _write_config(self) -> None:
        self._config_path.write_text(
            f"[api]\nauth_strategy = keystone\n{authtoken(self.keystone, PLACEMENT, 'placement')}"
            f"[placement_database]\nconnection = {self._connection_url().replace('$', '$$')}\n"
        )


class _Ours(_BehindKeystone, OurService):
    """The service of this checkout."""


class _Stock(_BehindKeystone, OpenStack):
    """OpenStack Placement."""


def service(kind: str, database: str, folder: Path, keystone: Keystone) -> MeasuredService:
    """A service of one of the :data:`KINDS` on an empty database, not started yet.

    :raises benchmarks.reference.ReferenceMissing: OpenStack Placement cannot be installed.
    """
    made: _Ours | _Stock
    if kind == "ours":
        made = _Ours(database, folder, _WORKERS, _THREADS)
    else:
        made = _Stock(database, folder, _WORKERS, _THREADS, install_reference())
    made.keystone = keystone
    return made
