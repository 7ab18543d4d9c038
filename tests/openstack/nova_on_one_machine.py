"""``python -m``: a program of Nova on one of several hosts of one machine: ``ROOT PROGRAM ARGUMENT ...``.

Runs with Nova's packages. Two things are played:

- ``/sys`` is below the folder ROOT. That behaves as the kernel does, so that CPUs go offline for those alone
  which read it: the machine keeps all of its CPUs.
- Storage counts as shared. The hosts do share their folder of instances, but libvirt believes that of network
  filesystems alone, and refuses to migrate guests otherwise.
"""

import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import libvirt
import nova.cmd  # noqa: F401  # before all others of Nova: it replaces parts of Python
from nova import filesystem

from tests.compute_agent.power_trees import KernelFiles


def main() -> None:
    """Run the console script of that name."""
    _, root, program, *arguments = sys.argv
    _play_power(Path(root))
    _share_storage()
    sys.argv = [program, *arguments]
    (script,) = metadata.entry_points(group="console_scripts", name=program)
    sys.exit(script.load()())


def _play_power(root: Path) -> None:
    files = KernelFiles(root)

    def read_sys(path: str) -> str:
        try:
            return (files.root / path.lstrip("/")).read_text()
        except OSError as error:
            raise filesystem.exception.FileNotFound(file_path=path) from error

    def write_sys(path: str, data: str) -> None:
        own = path.lstrip("/")
        # To write what is there already changes nothing.
        if files.read(own) != data:
            files.write(own, data)

    filesystem.read_sys, filesystem.write_sys = read_sys, write_sys


def _share_storage() -> None:
    migrate = libvirt.virDomain.migrateToURI3

    def migrate_on_shared_storage(domain: Any, uri: str, params: Any = None, flags: int = 0) -> Any:
        return migrate(domain, uri, params, flags | libvirt.VIR_MIGRATE_UNSAFE)

    libvirt.virDomain.migrateToURI3 = migrate_on_shared_storage


if __name__ == "__main__":
    main()
