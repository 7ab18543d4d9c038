"""Commands that list classes and pools of the configuration, with their settings and guests."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from compute_agent.agent.parked_cpus import known_topology
from compute_agent.agent.protocol import DaemonUnreachableError, RequestError
from compute_agent.classes.blockio_classes import parse_blockio_classes
from compute_agent.classes.cpu_classes import parse_cpu_classes, parse_cpu_pools
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.cmd.base import AgentLister, Commands, LinesColumn
from compute_agent.host.reader import read_topology
from compute_agent.inventory import options
from compute_agent.inventory.cpu_pools import lay_out_pools
from compute_agent.inventory.cpu_sets import resolve_cpu_sets
from compute_agent.model import cpuset
from compute_agent.model.cpuset import IDLE, SHARED
from compute_agent.model.resource import CoreScope
from compute_agent.resctrl.share_spec import WayRange

Row = tuple[Any, ...]
Guests = list[Mapping[str, Any]]


def set_values(one: Any, besides: Iterable[str] = ("name",)) -> Iterator[str]:
    """The settings of a class that are not empty, each as text such as ``weight = 50``.

    :param one: the class, a dataclass. Fields of nested dataclasses are treated like fields of the class
        itself.
    :param besides: the names of fields to leave out.
    """
    for field in fields(one):
        value = getattr(one, field.name)
        is_unset = value is None or value is False or value is CoreScope.NONE
        if field.name in besides or is_unset or value in ("", (), {}, frozenset()):
            continue
        if isinstance(value, WayRange):
            yield f"{field.name} = {value.first}-{value.last}"
        elif is_dataclass(value):
            yield from set_values(value)
        elif isinstance(value, frozenset):
            shown = map(str, sorted(value))
            yield f"{field.name} = {', '.join(shown)}"
        elif isinstance(value, tuple):
            yield f"{field.name} = {', '.join(map(str, value))}"
        else:
            yield f"{field.name} = {value}"


def guest_names(guests: Iterable[Mapping[str, Any]]) -> LinesColumn:
    """The sorted names of guests, each of which a table shows on a line of its own."""
    return LinesColumn(sorted(str(guest["name"]) for guest in guests))


class _ClassLister(AgentLister):
    """Base class of commands that list sections of the configuration, each with its guests."""

    def ask_guests(self) -> Guests:
        """The running guests. If no daemon answers, print the reason, and return an empty list."""
        try:
            found: Guests = self.ask_daemon("guest.list")
        except (DaemonUnreachableError, RequestError) as error:
            self.say_why_empty(f"Guests are not shown: {error}")
            return []
        return found


class QosClassList(_ClassLister):
    """List the classes of guests, each with its rank, settings and guests."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the classes from the configuration and guests from the daemon; return the rows."""
        classes, guests = parse_classes(self.load_conf()).classes, self.ask_guests()
        return ("name", "rank", "sets", "guests"), [
            (
                one.name,
                one.rank,
                LinesColumn(list(set_values(one, ("name", "rank")))),
                guest_names(guest for guest in guests if guest["qos_class"] == one.name),
            )
            for one in sorted(classes.values(), key=lambda each: (-each.rank, each.name))
        ]


class CpuClassList(_ClassLister):
    """List the classes of CPUs, each with its settings, the QoS classes that name it, and its guests."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the classes from the configuration and guests from the daemon; return the rows."""
        conf = self.load_conf()
        of_guests = {one.name: one.cpu_class for one in parse_classes(conf).classes.values()}
        guests = [guest for guest in self.ask_guests() if guest["dedicated_cpus"]]
        rows: list[Row] = []
        for name, one in sorted(parse_cpu_classes(conf).items()):
            named = sorted(qos_class for qos_class, cpu_class in of_guests.items() if cpu_class == name)
            rows.append(
                (
                    name,
                    LinesColumn(list(set_values(one))),
                    LinesColumn(["the usual class of these CPUs"] if name in (IDLE, SHARED) else named),
                    guest_names(
                        guest
                        for guest in guests
                        if (guest["cpu_class"] or of_guests.get(guest["qos_class"])) == name
                    ),
                )
            )
        if not rows:
            self.say_why_empty("Not configured: there is no section [cpu_class:NAME].")
        return ("name", "sets", "qos_classes", "guests"), rows


class BlockIoClassList(_ClassLister):
    """List the classes of block I/O, each with its settings and guests."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the classes from the configuration and guests from the daemon; return the rows."""
        classes = parse_blockio_classes(self.load_conf())
        if not classes:
            self.say_why_empty("Not configured: there is no section [blockio_class:NAME].")
        guests = self.ask_guests()
        return ("name", "sets", "guests"), [
            (
                name,
                LinesColumn(list(set_values(one))),
                guest_names(guest for guest in guests if guest["blockio_class"] == name),
            )
            for name, one in sorted(classes.items())
        ]


class CpuPoolList(_ClassLister):
    """List the pools of CPUs, each with its settings, its CPUs, and the guests on them."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the configuration, the host, and guests from the daemon; return the rows."""
        conf = self.load_conf()
        pools = parse_cpu_pools(conf, parse_classes(conf).classes.keys())
        if not pools:
            self.say_why_empty("Not configured: there is no section [cpu_pool:NAME].")
        topology = known_topology(conf, read_topology(Path(conf.host.root)))
        cpus = lay_out_pools(pools, resolve_cpu_sets(options.cpu_options(conf), topology), topology)
        guests = self.ask_guests()
        return ("name", "cpus", "sets", "guests"), [
            (
                pool.name,
                cpuset.format(cpus[pool.name]),
                LinesColumn(list(set_values(pool, ("name", "cpus")))),
                guest_names(guest for guest in guests if cpuset.parse(guest["cpus"]) & cpus[pool.name]),
            )
            for pool in pools
        ]


COMMANDS: Final[Commands] = {
    "qos class list": QosClassList,
    "cpu class list": CpuClassList,
    "cpu pool list": CpuPoolList,
    "blockio class list": BlockIoClassList,
}
