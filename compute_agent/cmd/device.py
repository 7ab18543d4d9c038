"""The command ``compute-agent device list``, which shows the offered PCI devices and their guests."""

from __future__ import annotations

import argparse
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands, LinesColumn

_COLUMNS: Final = ("address", "resource_class", "held", "total", "numa_node", "driver", "link", "guests")


class DeviceList(AgentLister):
    """List the PCI devices that the host offers, with their NUMA nodes, drivers, links and guests."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Request the offered devices from the daemon. Returns the columns, and a row for each device."""
        rows = self.ask_daemon("device.list")
        if not rows:
            self.say_why_empty("The host offers no PCI devices: [pci] device_spec selects none.")
        return _COLUMNS, [
            (*(row[name] for name in _COLUMNS[:-1]), LinesColumn(sorted(row["guests"]))) for row in rows
        ]


COMMANDS: Final[Commands] = {"device list": DeviceList}
