"""A root file system with libvirtd, QEMU and systemd for the virtual machine, which itself has none of them.

`python -m tests.vm.libvirt_machine` makes it with the script of the machine, as root on Debian 12, in some
minutes. It is in the folder `libvirt` of the machine, with a kernel of its own. With the kernel parameters
:data:`SYSTEMD` the first process is systemd, and the command a service. The folder `containers` has the same
file system with Podman and Docker, and the folder `debian13` all of them from Debian 13.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.vm import machine, modules
from tests.vm.kernel import run_command

FOLDER = machine.FOLDER / "libvirt"
CONTAINERS = machine.FOLDER / "containers"
DEBIAN_13 = machine.FOLDER / "debian13"
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
NEW_RELEASE = "trixie"
NEW_PACKAGES = (
    *("python3", "python3-libvirt", "kmod", "iproute2", "procps", "numactl", "util-linux", "libpam-systemd"),
    *PACKAGES,
    *("libgpgme11t64", "libsubid5", "libseccomp2", "libsqlite3-0", "libyajl2"),
)
NEW_ENGINES = (
    *("podman", "conmon", "crun", "netavark", "golang-github-containers-common"),
    *("golang-github-containers-image", "docker.io", "docker-cli", "containerd", "runc"),
)
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
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
    if not (DEBIAN_13 / "rootfs.cpio").exists():
        build_debian_13()
    print(f"{FOLDER} is there, with kernels {', '.join(machine.kernels(FOLDER))}")
    return modules.main()


def complete(archive: Path) -> None:
    """Append what an initial file system lacks: the kernel unpacks one archive after the other."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        add_unit(work / "root")
        # The script of the machine removes these libraries, and libvirt needs them.
        _extract((LIBRARIES,), work)
        shutil.copytree(work / "package/usr/lib", work / "root/usr/lib", symlinks=True)
        _append(archive, work / "root")


def add_unit(root: Path) -> None:
    """Write the unit that runs the command of the machine as a service."""
    unit = root / "etc/systemd/system/vm-command.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text(_UNIT)


def copy_kernels(folder: Path) -> None:
    """Copy all but the file system of the machine into the folder of another machine."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("rootfs.cpio"))


def add_engines() -> None:
    """Make the file system with Podman and Docker."""
    copy_kernels(CONTAINERS)
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


def build_debian_13() -> None:
    """Make the file system of Debian 13, with the kernel and the first program of the other machines."""
    copy_kernels(DEBIAN_13)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        root = work / "root"
        work.chmod(0o755)
        include = f"--include={','.join(NEW_PACKAGES)}"
        mirror = modules.find_mirror()
        run_command("debootstrap", "--variant=minbase", include, NEW_RELEASE, root, mirror)
        with (FOLDER / "rootfs.cpio").open("rb") as archive:
            names = ("init", "etc/hosts", "etc/hostname", "usr/lib/modules/*")
            command = ["cpio", "--extract", "--make-directories", "--unconditional", "--quiet", *names]
            subprocess.run(command, check=True, cwd=root, stdin=archive)
        options = modules.state_options(work, NEW_RELEASE)
        run_command("apt-get", "-qq", *options, "update")
        _extract(NEW_ENGINES, work, options)
        shutil.copytree(work / "package", root, symlinks=True, dirs_exist_ok=True)
        add_unit(root)
        for folder in ("mnt/share", "mnt/ctl"):
            (root / folder).mkdir(parents=True)
        for unused in _UNUSED:
            shutil.rmtree(root / unused)
        new = DEBIAN_13 / "rootfs.cpio.new"
        new.unlink(missing_ok=True)
        _append(new, root)
        new.rename(DEBIAN_13 / "rootfs.cpio")


def _extract(packages: tuple[str, ...], work: Path, options: Iterable[str] = ()) -> None:
    """Put the files of packages into the folder `package`."""
    # The user of apt writes there.
    work.chmod(0o777)
    run_command("apt-get", *options, "download", *packages, folder=work)
    for package in sorted(work.glob("*.deb")):
        run_command("dpkg-deb", "--extract", package, work / "package")


def _append(archive: Path, root: Path) -> None:
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    command = ["cpio", "--create", "--format=newc", "--quiet"]
    with archive.open("ab") as file:
        subprocess.run(command, check=True, cwd=root, input=names.encode(), stdout=file)


if __name__ == "__main__":
    sys.exit(build())
