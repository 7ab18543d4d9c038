"""Commands that describe the host and the configuration, without a daemon."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from compute_agent.cmd.base import Lister, ShowOne, columns
from compute_agent.daemon.world import build_world
from compute_agent.host import cpuset
from compute_agent.host.reader import read_topology
from compute_agent.inventory import options
from compute_agent.inventory.cpu_sets import resolve
from compute_agent.report.plan import to_api


class HostShow(ShowOne):
    """Show the processors and the memory of the host."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the host."""
        topology = read_topology(Path(self.load_conf().host.root))
        return columns(
            {
                "architecture": topology.architecture,
                "model": topology.model_name,
                "base_frequency_khz": topology.base_frequency_khz,
                "packages": len(topology.packages),
                "numa_nodes": len(topology.numa_nodes),
                "l3_domains": len(topology.l3_domains),
                "cores": len(topology.cores),
                "hyperthreaded": topology.hyperthreaded,
                "online_cpus": cpuset.format(topology.online),
                "offline_cpus": cpuset.format(topology.offline),
                "memory_kib": topology.memory_kib,
                "cpu_flags": sorted(topology.cpu_flags),
            }
        )


class TopologyShow(ShowOne):
    """Show packages, NUMA nodes, cores and caches, and the CPUs of each."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the host."""
        return columns(read_topology(Path(self.load_conf().host.root)).to_dict())


class ConfigCheck(ShowOne):
    """Check the configuration against this host: what each CPU is for. Fails as the agent would refuse to
    start.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Resolve the CPU sets."""
        conf = self.load_conf()
        topology = read_topology(Path(conf.host.root))
        sets = resolve(options.cpu_options(conf), topology)
        return columns(
            {
                "dedicated_cpus": cpuset.format(sets.dedicated),
                "shared_cpus": cpuset.format(sets.shared),
                "emulator_cpus": cpuset.format(sets.emulator),
                "host_cpus": cpuset.format(topology.online - sets.dedicated - sets.shared),
                "provider_tree": conf.compute.provider_tree,
                "policy": conf.policy.name,
                "warnings": list(sets.warnings),
            }
        )


_AMOUNTS = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")


class InventoryShow(Lister):
    """Show the inventories and traits of the host's providers: derived against reported, with differences."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the options."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--derived",
            action="store_true",
            help="only what follows from configuration and host; asks no daemon",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Derive here, or ask the daemon for both sides."""
        if parsed_args.derived:
            tree = build_world(self.load_conf()).tree
            rows = [
                (node.name, name, *(to_api(inventory)[key] for key in _AMOUNTS))
                for node in tree.nodes
                for name, inventory in sorted(node.inventories.items())
            ]
            return ("provider", "resource_class", *_AMOUNTS), rows
        return ("provider", "kind", "name", "derived", "reported", "differs"), _compare(self.ask("inventory"))


def _compare(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    derived, reported = answer["derived"], answer["reported"]
    nothing: dict[str, Any] = {"inventories": {}, "traits": []}
    rows: list[tuple[Any, ...]] = []
    for uuid in dict.fromkeys((*derived, *reported)):
        ours, theirs = derived.get(uuid, nothing), reported.get(uuid, nothing)
        provider = ours.get("name") or theirs.get("name")
        for name in sorted({*ours["inventories"], *theirs["inventories"]}):
            one, other = ours["inventories"].get(name), theirs["inventories"].get(name)
            rows.append((provider, "inventory", name, _amounts(one), _amounts(other), one != other))
        for name in sorted({*ours["traits"], *theirs["traits"]}):
            mine, known = name in ours["traits"], name in theirs["traits"]
            rows.append((provider, "trait", name, mine, known, mine != known))
    return rows


def _amounts(inventory: dict[str, Any] | None) -> str:
    return "" if inventory is None else " ".join(f"{key}={inventory[key]}" for key in _AMOUNTS)
