"""A kernel with core scheduling and the tracer osnoise for the virtual machine; Debian's have neither.

`python -m tests.vm.kernel` builds it from Debian's source, as root on Debian 12, in some ten minutes on two
free cores. It is in the folder `core` of the machine, so that other tests do not boot it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.vm import machine

KERNEL = machine.FOLDER / "core/vmlinux"
FRAGMENT = Path(__file__).with_name("core.config")
SOURCE = "linux-source-6.12"
TOOLS = ("flex", "bison", "bc", "libelf-dev", "gcc", "make", "xz-utils")


def build() -> int:
    """Build the kernel where it is missing."""
    if not KERNEL.exists():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # The user of apt writes there.
            folder.chmod(0o777)
            run_command("apt-get", "install", "-y", "-qq", "--no-install-recommends", *TOOLS)
            run_command("apt-get", "download", SOURCE, folder=folder)
            [package] = folder.glob("*.deb")
            run_command("dpkg-deb", "--extract", package, folder / "package")
            [archive] = (folder / "package/usr/src").glob("*.tar.xz")
            run_command("tar", "xJf", archive, folder=folder)
            source = folder / SOURCE
            run_command("make", "-s", "tinyconfig", folder=source)
            run_command(
                "scripts/kconfig/merge_config.sh", "-m", "-O", ".", ".config", FRAGMENT, folder=source
            )
            run_command("make", "-s", "olddefconfig", folder=source)
            run_command("make", "-s", f"-j{os.cpu_count()}", "vmlinux", folder=source)
            KERNEL.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / "vmlinux", KERNEL)
    print(f"{KERNEL} is there")
    return 0


def run_command(*command: object, folder: Path | None = None) -> None:
    """Run a command to its end.

    :raises subprocess.CalledProcessError: it fails.
    """
    subprocess.run([str(word) for word in command], check=True, cwd=folder)


if __name__ == "__main__":
    sys.exit(build())
