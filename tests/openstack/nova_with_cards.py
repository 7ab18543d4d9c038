"""``python -m``: a program of Nova on a host with PCI cards that do not exist: ``PROGRAM ARGUMENT ...``.

Runs with Nova's packages. Nova has a fake driver with PCI devices, but the vendors and products of these are
longer than the columns of Nova's database.
"""

import json
import sys
from importlib import import_module, metadata
from typing import Any

from tests.openstack.pci_cards import DEVICES


def main() -> None:
    """Run the console script of that name."""
    _, program, *arguments = sys.argv
    sys.argv = [program, *arguments]
    (script,) = metadata.entry_points(group="console_scripts", name=program)
    start = script.load()
    # after the program, which chooses the threads that all modules of Nova use
    _add_cards(import_module("nova.virt.fake").FakeDriverWithoutFakeNodes)
    sys.exit(start())


def _add_cards(driver: Any) -> None:
    """Let the driver report the same cards on each host."""
    read_resources = driver.get_available_resource

    def get_available_resource(self: Any, nodename: str) -> dict[str, Any]:
        return {**read_resources(self, nodename), "pci_passthrough_devices": json.dumps(DEVICES)}

    driver.get_available_resource = get_available_resource


if __name__ == "__main__":
    main()
