"""Commands that show one answer of the running agent, such as ``device list`` and ``capacity show``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from compute_agent.cmd.base import AgentLister, Commands, ShowOne


class StatusCommand(ShowOne):
    """Show the state of the running agent."""

    METHOD = "status"


class CapacityShow(AgentLister):
    """Show unused shared CPUs and memory, how much of them the agent offers, and why."""

    METHOD = "capacity.show"
    COLUMNS = ("provider", "term", "amount", "unit")

    def why_empty(self) -> str:
        """A sentence about the options that are not set, or the reason why the agent can measure nothing."""
        options = self.load_conf().capacity
        if options.mode == options.steal == "off" and not options.collectors:
            return (
                "Not configured: nothing is measured without [capacity] mode, steal or collectors. mode ="
                " preview measures what guests leave unused, and offers nothing."
            )
        return (
            "There is nothing to measure: [capacity] mode and steal need shared CPUs ([compute]"
            " cpu_shared_set), and collectors need an inventory of their resource classes."
        )


class DeviceList(AgentLister):
    """List the PCI devices that the host offers, with their NUMA nodes, drivers, links and guests."""

    METHOD = "device.list"
    COLUMNS = ("address", "resource_class", "held", "total", "numa_node", "driver", "link", "guests")

    EMPTY = "The host offers no PCI devices: [pci] device_spec selects none."

    def request_rows(self, parsed_args: argparse.Namespace) -> list[Mapping[str, Any]]:
        """The devices, each with the sorted uuids of its guests."""
        return [{**row, "guests": sorted(row["guests"])} for row in super().request_rows(parsed_args)]


class InterferenceList(AgentLister):
    """List pairs of guests: a disturbed guest, and the guest that disturbs it according to the agent.

    The columns show the reason of each decision, and whether the second guest is limited. `compute-agent
    event list` shows earlier decisions.
    """

    METHOD = "interference.list"
    COLUMNS = ("section", "victim", "before", "level", "suspect", "correlation", "limit", "state")

    def why_empty(self) -> str:
        """A sentence about the watched signals, or about the missing section."""
        # ask_daemon() has imported the options already, so these imports cost no time
        from compute_agent.conf.interference import INTERFERENCE
        from compute_agent.conf.qos import family_sections

        watched = [
            f"[interference:{name}] signal = {options.signal}"
            for name, options in family_sections(self.load_conf(), INTERFERENCE)
        ]
        if not watched:
            return (
                "Not configured: no guest is watched without section [interference:NAME] with a signal, such"
                " as signal = run_delay."
            )
        return (
            f"Nothing so far: {', '.join(watched)} limits no guest now, and has judged no pair of guests."
            " The agent judges a guest after five minutes of samples; `compute-agent event list --kind"
            " verdict` has earlier verdicts."
        )


class ResctrlGroupList(AgentLister):
    """List the resctrl groups of this host with their cache ways and bandwidth, and the guests in them.

    For groups of other programs, the column kind contains foreign.
    """

    METHOD = "resctrl.groups"
    COLUMNS = (
        "group",
        "kind",
        "guests",
        "threads",
        "schemata",
        "ways",
        "llc_kib",
        "bandwidth_percent",
        "mode",
    )


_MOVES: Final = (
    "kind",
    "guest",
    "from_provider",
    "from_class",
    "from_amount",
    "to_provider",
    "to_class",
    "to_amount",
)


class ReshapeCommand(AgentLister):
    """Move allocations of guests to the providers that now have their resources, in one atomic request.

    The command lists the moved allocations.
    """

    METHOD = "reshape"
    PARAMS = ("dry_run",)

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="list the allocations to move, and move none"
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Move the allocations; return a row for each of them, and for each changed inventory."""
        answer = self.send_request(parsed_args)
        moves = [("allocation", move["guest"], *move["from"], *move["to"]) for move in answer["moves"]]
        inventories = [_inventory_change(change) for change in answer["inventories"]]
        return _MOVES, [*moves, *inventories]


def _inventory_change(change: Mapping[str, Any]) -> tuple[Any, ...]:
    """A row about the change of an inventory's total.

    For a new inventory the columns of the old total are empty. For a removed inventory the columns of the new
    total are empty.
    """
    where = (change["provider"], change["resource_class"])
    before, after = change["before"], change["after"]
    return (
        "inventory",
        "",
        *(("", "", "") if before is None else (*where, before)),
        *(("", "", "") if after is None else (*where, after)),
    )


COMMANDS: Final[Commands] = {
    "capacity show": CapacityShow,
    "device list": DeviceList,
    "interference list": InterferenceList,
    "reshape": ReshapeCommand,
    "resctrl group list": ResctrlGroupList,
    "status": StatusCommand,
}
