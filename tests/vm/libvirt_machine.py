"""A root file system with libvirtd, QEMU and systemd for the virtual machine, which itself has none of them.

`python -m tests.vm.libvirt_machine` makes it with the script of the machine, as root on Debian 12, in some
minutes. It is in the folder `libvirt` of the machine, with a kernel of its own. With the kernel parameters
:data:`SYSTEMD` the first process is systemd, and the command a service.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.vm import machine, modules
from tests.vm.kernel import run_command

FOLDER = machine.FOLDER / "libvirt"
PACKAGES = (
    *("irqbalance", "systemd", "systemd-sysv", "dbus"),
    *("libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86"),
)
RELEASE = "bookworm"
LIBRARIES = "libicu72"
SYSTEMD = "rdinit=/lib/systemd/systemd systemd.unit=vm-command.service"
"""Kernel parameters with which systemd starts."""
_UNIT = """
[Unit]
Description=The command of the machine
[Service]
Type=oneshot
# What systemd has not done yet of the program that is the first process otherwise.
ExecStart=/bin/sh -c "sed -n '/^modprobe/,$$p' /init > /run/vm-command; exec /bin/sh /run/vm-command"
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
StandardError=journal+console
"""


def build() -> int:
    """Make the file system where it is missing, and fetch the modules of its kernel."""
    if not (FOLDER / "rootfs.cpio").exists():
        environ = os.environ | {"PACKAGES": ",".join(PACKAGES), "RELEASES": RELEASE}
        script = machine.SCRIPTS / "make-rootfs.sh"
        subprocess.run([str(script), str(FOLDER)], check=True, env=environ)
        complete(FOLDER / "rootfs.cpio")
    print(f"{FOLDER} is there, with kernels {', '.join(machine.kernels(FOLDER))}")
    return modules.main()


def complete(archive: Path) -> None:
    """Append what an initial file system lacks: the kernel unpacks one archive after the other."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        # The user of apt writes there.
        work.chmod(0o777)
        unit = work / "root/etc/systemd/system/vm-command.service"
        unit.parent.mkdir(parents=True)
        unit.write_text(_UNIT)
        # The script of the machine removes these libraries, and libvirt needs them.
        run_command("apt-get", "download", LIBRARIES, folder=work)
        [package] = work.glob("*.deb")
        run_command("dpkg-deb", "--extract", package, work / "package")
        shutil.copytree(work / "package/usr/lib", work / "root/usr/lib", symlinks=True)
        root = work / "root"
        names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
        command = ["cpio", "--create", "--format=newc", "--quiet"]
        packed = subprocess.run(command, check=True, cwd=root, input=names.encode(), capture_output=True)
    with archive.open("ab") as file:
        file.write(packed.stdout)


if __name__ == "__main__":
    sys.exit(build())
