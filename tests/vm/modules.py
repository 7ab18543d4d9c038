"""Modules of vhost and VFIO for Debian's kernels of the virtual machine. The machine itself has none.

`python -m tests.vm.modules` takes them from Debian's packages of these kernels, as root on Debian 12. A
kernel goes without if its package is no longer in Debian's archives.
"""

import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.vm import machine
from tests.vm.kernel import run_command

VHOST = ("vhost_iotlb", "vhost", "tun", "tap", "vhost_net")
"""The modules in the order in which they can be loaded."""
VFIO = ("irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci")
"""The same; newer kernels have ``vfio_virqfd`` in ``vfio``."""
NAMES = (*VHOST, *VFIO)
RELEASE = "bookworm"


def folder_of(version: str) -> Path:
    """The folder with the modules of a kernel, inside that of the machine."""
    return machine.FOLDER / "modules" / version


def find_mirror() -> str:
    """The mirror of Debian among the host's sources of apt.

    :raises ValueError: the host has no mirror of Debian 12.
    """
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)"]
    targets = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    mirror = next((line.split()[0] for line in targets if line.endswith(f" {RELEASE}")), None)
    if mirror is None:
        raise ValueError(f"no mirror of {RELEASE} among the sources of apt")
    return mirror


def state_options(work: Path, *suites: str) -> list[str]:
    """Options of apt for a state of its own in a folder, with suites that the host's lists may lack.

    :raises ValueError: the host has no mirror of Debian 12.
    """
    key, mirror = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg", find_mirror()
    (work / "sources.list").write_text("".join(f"deb [{key}] {mirror} {suite} main\n" for suite in suites))
    (work / "lists/partial").mkdir(parents=True)
    options = [f"Dir::Etc::SourceList={work}/sources.list", "Dir::Etc::SourceParts=/dev/null"]
    return [word for each in (*options, f"Dir::State::Lists={work}/lists") for word in ("-o", each)]


def fetch(version: str) -> None:
    """Put the modules of a kernel into its folder.

    :raises subprocess.CalledProcessError: Debian has no such package.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        # The user of apt writes there.
        work.chmod(0o777)
        options = state_options(work, RELEASE, f"{RELEASE}-backports")
        run_command("apt-get", "-qq", *options, "update")
        run_command("apt-get", "-qq", *options, "download", f"linux-image-{version}", folder=work)
        [package] = work.glob("*.deb")
        run_command("dpkg-deb", "--extract", package, work / "package")
        # Newer packages have compressed modules.
        files = [*(work / "package").rglob("*.ko"), *(work / "package").rglob("*.ko.xz")]
        found = {path.name.partition(".")[0]: path for path in files}
        folder_of(version).mkdir(parents=True, exist_ok=True)
        for module in found.keys() & set(NAMES):
            content = found[module].read_bytes()
            if found[module].suffix == ".xz":
                content = lzma.decompress(content)
            (folder_of(version) / f"{module}.ko").write_bytes(content)


def main() -> int:
    """Fetch the missing modules of all kernels."""
    for version in machine.kernels():
        if not folder_of(version).is_dir() or not any(folder_of(version).iterdir()):
            try:
                fetch(version)
            except subprocess.CalledProcessError as error:
                print(f"{version} goes without modules: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
