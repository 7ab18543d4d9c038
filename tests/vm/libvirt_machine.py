"""A root file system with libvirtd, QEMU and systemd for the virtual machine, which itself has none of them.

`python -m tests.vm.libvirt_machine` makes it with the script of the machine, as root on Debian 12, in some
minutes. It is in the folder `libvirt` of the machine, with a kernel of its own. With the kernel parameters
:data:`SYSTEMD` the first process is systemd, and the command a service. The folder `containers` has the same
file system with Podman and Docker.
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
CONTAINERS = machine.FOLDER / "containers"
PACKAGES = (
    *("irqbalance", "systemd", "systemd-sysv", "dbus"),
    *("libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "qemu-system-x86"),
)
RELEASE = "bookworm"
LIBRARIES = "libicu72"
ENGINES = ("podman", "conmon", "crun", "golang-github-containers-common", "golang-github-containers-image")
ENGINES += ("docker.io", "containerd", "runc", "libsubid4", "libgpgme11", "libassuan0")
"""Podman and Docker, and what they need. debootstrap cannot configure them."""
_ENGINE_FILES = (
    *("usr/bin/podman", "usr/bin/conmon", "usr/bin/crun", "etc/containers", "usr/share/containers"),
    *("usr/bin/docker", "usr/sbin/dockerd", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2"),
    *("usr/sbin/runc", "usr/lib/x86_64-linux-gnu"),
)
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
    if not (CONTAINERS / "rootfs.cpio").exists():
        add_engines()
    print(f"{FOLDER} is there, with kernels {', '.join(machine.kernels(FOLDER))}")
    return modules.main()


def complete(archive: Path) -> None:
    """Append what an initial file system lacks: the kernel unpacks one archive after the other."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        unit = work / "root/etc/systemd/system/vm-command.service"
        unit.parent.mkdir(parents=True)
        unit.write_text(_UNIT)
        # The script of the machine removes these libraries, and libvirt needs them.
        _extract((LIBRARIES,), work)
        shutil.copytree(work / "package/usr/lib", work / "root/usr/lib", symlinks=True)
        _append(archive, work / "root")


def add_engines() -> None:
    """Make the file system with Podman and Docker."""
    shutil.copytree(FOLDER, CONTAINERS, dirs_exist_ok=True, ignore=shutil.ignore_patterns("rootfs.cpio"))
    archive = CONTAINERS / "rootfs.cpio.new"
    shutil.copy(FOLDER / "rootfs.cpio", archive)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        _extract(ENGINES, work)
        for file in _ENGINE_FILES:
            target = work / "root" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / "package" / file).rename(target)
        _append(archive, work / "root")
    archive.rename(CONTAINERS / "rootfs.cpio")


def _extract(packages: tuple[str, ...], work: Path) -> None:
    """Put the files of packages into the folder `package`."""
    # The user of apt writes there.
    work.chmod(0o777)
    run_command("apt-get", "download", *packages, folder=work)
    for package in sorted(work.glob("*.deb")):
        run_command("dpkg-deb", "--extract", package, work / "package")


def _append(archive: Path, root: Path) -> None:
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    command = ["cpio", "--create", "--format=newc", "--quiet"]
    with archive.open("ab") as file:
        subprocess.run(command, check=True, cwd=root, input=names.encode(), stdout=file)


if __name__ == "__main__":
    sys.exit(build())
