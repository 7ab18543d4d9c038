"""Modules of vhost for Debian's kernels of the virtual machine. The machine itself has none.

`python -m tests.vm.modules` takes them from Debian's packages of these kernels, as root on Debian 12. A
kernel goes without if its package is no longer in Debian's archives.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.vm import machine
from tests.vm.kernel import run_command

NAMES = ("vhost_iotlb", "vhost", "tun", "tap", "vhost_net")
"""The modules in the order in which they can be loaded."""


def folder_of(version: str) -> Path:
    """The folder with the modules of a kernel, inside that of the machine."""
    return machine.FOLDER / "modules" / version


def fetch(version: str) -> None:
    """Put the modules of a kernel into its folder.

    :raises subprocess.CalledProcessError: Debian has no such package.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        # The user of apt writes there.
        work.chmod(0o777)
        run_command("apt-get", "download", f"linux-image-{version}", folder=work)
        [package] = work.glob("*.deb")
        run_command("dpkg-deb", "--extract", package, work / "package")
        found = {path.stem: path for path in (work / "package").rglob("*.ko") if path.stem in NAMES}
        folder_of(version).mkdir(parents=True, exist_ok=True)
        for module in NAMES:
            (folder_of(version) / f"{module}.ko").write_bytes(found[module].read_bytes())


def main() -> int:
    """Fetch the missing modules of all kernels."""
    for version in machine.kernels():
        if not folder_of(version).is_dir():
            try:
                fetch(version)
            except subprocess.CalledProcessError as error:
                print(f"{version} goes without modules of vhost: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
