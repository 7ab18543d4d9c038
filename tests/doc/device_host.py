"""The files of a host with PCI devices: `python -m tests.doc.device_host FOLDER` writes them."""

import sys
from pathlib import Path

from tests.compute_agent.host.pci_trees import FakeDevice, make_pci_tree

SWITCH = ("0000:80:01.0", "0000:81:00.0")
DEVICES = [
    FakeDevice(("0000:10:01.0", "0000:1a:00.0"), node=0),
    FakeDevice((*SWITCH, "0000:82:00.0", "0000:8a:00.0"), node=1),
    FakeDevice((*SWITCH, "0000:82:01.0", "0000:8b:00.0"), "15b3", "1021", "020700", node=1),
]


def write_host(root: Path) -> None:
    """Write CPUs 0 and 1, each a NUMA node, and the devices."""
    cpu, node = "sys/devices/system/cpu", "sys/devices/system/node"
    files = {f"{cpu}/online": "0-1", f"{cpu}/present": "0-1", f"{node}/online": "0-1"}
    for number in (0, 1):
        files |= {
            f"{cpu}/cpu{number}/topology/core_cpus_list": str(number),
            f"{cpu}/cpu{number}/topology/package_cpus_list": str(number),
            f"{cpu}/cpu{number}/topology/physical_package_id": str(number),
            f"{cpu}/cpu{number}/topology/core_id": "0",
            f"{node}/node{number}/cpulist": str(number),
            f"{node}/node{number}/meminfo": f"Node {number} MemTotal: 8388608 kB",
        }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")
    make_pci_tree(root, DEVICES)


if __name__ == "__main__":
    write_host(Path(sys.argv[1]))
