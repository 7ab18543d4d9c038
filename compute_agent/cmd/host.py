"""Commands about the host and the configuration, most of which need no daemon."""

from __future__ import annotations

import argparse
import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import stevedore
from cliff.formatters.base import SingleFormatter
from oslo_config import cfg

from compute_agent.agent.config_warnings import config_warnings, missing_credentials
from compute_agent.agent.configured_host import (
    build_host_state,
    check_options,
    derive_tree,
    policy_of,
)
from compute_agent.agent.dry_run import look_up_owner
from compute_agent.agent.guest_settings import check_guests
from compute_agent.agent.host_access import STATE_FILE, check_state_folder, offered_platform, open_resctrl
from compute_agent.agent.parked_cpus import known_topology, stopped_cpus, stopped_warning
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.classification.resolution import parse_policy
from compute_agent.cmd.base import AgentLister, Commands, ShowOne, document_columns, offer_formats
from compute_agent.cmd.noise import CpuHolders, measure_noise
from compute_agent.conf import find_unknown_options, written
from compute_agent.conf.origins import DEFAULT, settings
from compute_agent.conf.policy import FOLLOW
from compute_agent.drawing import host
from compute_agent.drawing.host import CpuConditions, draw_host
from compute_agent.drivers.factory import choose_driver, libvirtd_is_usable
from compute_agent.fleet.configuration import file_origins
from compute_agent.host.memory import node_overlaps
from compute_agent.host.reader import read_topology
from compute_agent.host.topology import HostTopology
from compute_agent.inventory import host_identity, options
from compute_agent.inventory.cpu_sets import resolve_cpu_sets
from compute_agent.inventory.derive import BESIDE
from compute_agent.inventory.host_identity import IdentityError, check_owner, read_identity
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.inventory.resctrl import CachePlatform
from compute_agent.isolation.osnoise import MAX_SECONDS
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.messages import ConfigError, DriverError
from compute_agent.pipeline import state
from compute_agent.pipeline.placer import stray_warning
from compute_agent.pipeline.state import AgentState
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.plan import to_api
from compute_agent.report.root_provider import RootOwner, owner_of, root_keeper
from compute_agent.resctrl.share_spec import ShareSpec
from compute_agent.throttling.settings import build_rules, read_settings
from compute_agent.throttling.watermarks.metrics import load_registry

MISTAKEN: Final = 3
"""Exit status of ``config check`` if the agent would start, but the configuration has mistakes."""


class HostShow(ShowOne):
    """Show the processors and the memory of the host."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the host. Returns the names and values to print."""
        conf = self.load_conf()
        topology = _read_host(conf)
        platform = offered_platform(open_resctrl(conf).control, parse_classes(conf).share_specs)
        return document_columns(
            {
                "architecture": topology.architecture,
                "model": topology.model_name,
                "base_frequency_khz": topology.base_frequency_khz,
                "packages": len(topology.packages),
                "numa_nodes": len(topology.numa_nodes),
                "l3_domains": len(topology.l3_domains),
                "cores": len(topology.cores),
                "hyperthreaded": topology.is_hyperthreaded,
                "online_cpus": cpuset.format(topology.online),
                "offline_cpus": cpuset.format(topology.offline),
                "parked_cpus": cpuset.format(topology.parked),
                "memory_kib": topology.memory_kib,
                "cpu_flags": sorted(topology.cpu_flags),
                "resctrl": {} if platform is None else _cache_document(platform),
            }
        )


def _read_host(conf: cfg.ConfigOpts) -> HostTopology:
    """The topology of this host, with the offline dedicated CPUs that ``topology.json`` describes."""
    return known_topology(conf, read_topology(Path(conf.host.root)))


def _cache_document(platform: CachePlatform) -> dict[str, Any]:
    """The capabilities of resctrl as a document: features, numbers of groups, and each L3 cache."""
    return {
        "features": sorted(platform.features),
        "groups": platform.groups,
        "groups_taken": platform.groups_taken,
        "caches": [dataclasses.asdict(platform.domains[cache]) for cache in sorted(platform.domains)],
    }


class TopologyShow(ShowOne):
    """Show packages, NUMA nodes and caches, what their CPUs are used for, and the guests on these CPUs.

    The output is a tree, or a picture (-f svg). Other output formats also show cores and all caches, but no
    guests.
    """

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager[SingleFormatter]:
        manager = super()._load_formatter_plugins()
        offer_formats(manager, "svg", "tree")
        return manager

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--svg", metavar="FILE", type=Path, help="also write a picture to FILE")
        parser.add_argument(
            "--noise",
            type=int,
            choices=range(1, MAX_SECONDS + 1),
            metavar="N",
            help="measure interruptions of CPUs for N seconds, and show them",
        )

    @property
    def formatter_default(self) -> str:
        """The output format without the option ``-f``: the tree, which people can read best."""
        return "tree"

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command.

        If the user selects columns, print a table, because the tree has no columns.
        """
        if parsed_args.formatter == "tree" and parsed_args.columns:
            parsed_args.formatter = "table"
        return super().run(parsed_args)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the host, and draw it if a picture or tree is wanted; return what to print."""
        conf = self.load_conf()
        topology = _read_host(conf)
        form, file = parsed_args.formatter, parsed_args.svg
        if file is None and form not in ("svg", "tree"):
            return document_columns(topology.to_dict())
        sets, guests = self._cpu_sets(conf, topology), self._guests()
        conditions = self._cpu_conditions(conf, topology, parsed_args.noise)
        devices = self._device_lines()
        if file is not None:
            file.write_text(draw_host(topology, sets, guests, conditions, devices))
        if form == "svg":
            return ("svg",), (draw_host(topology, sets, guests, conditions, devices),)
        if form == "tree":
            lines = host.tree_lines(topology, sets, guests, conditions, devices)
            return ("tree",), ("".join(f"{line}\n" for line in lines),)
        return document_columns(topology.to_dict())

    def _cpu_conditions(
        self, conf: cfg.ConfigOpts, topology: HostTopology, seconds: int | None
    ) -> CpuConditions:
        """The isolation levels of CPUs, and the noise (interruptions) of CPUs if ``seconds`` is given.

        If no daemon answers, no CPU has a level.

        :param seconds: the duration of the measurement of noise; None means that noise is not measured.
        """
        holders = CpuHolders.parse_rows(self.ask_if_running("cpu.holders") or ())
        noise: dict[int, float] = {}
        if seconds:
            found = measure_noise(Path(conf.host.root), topology.online, holders.threads, seconds)
            noise = {cpu: one.all_interruptions for cpu, one in found.items()}
        # CPUs with the level ``shared`` are left out: work of the host runs on them in the same way as on
        # CPUs without a level.
        levels = {cpu: level for cpu, level in holders.levels.items() if level != IsolationLevel.SHARED}
        return CpuConditions(levels, noise)

    def _device_lines(self) -> dict[int | None, list[str]]:
        """Lines about the PCI devices that the host offers, by NUMA node; empty if no daemon answers."""
        found: dict[int | None, list[str]] = {}
        for row in self.ask_if_running("device.list") or ():
            found.setdefault(row["numa_node"], []).append(row["text"])
        return found

    def _cpu_sets(self, conf: cfg.ConfigOpts, topology: HostTopology) -> CpuSets:
        """The configured CPU sets. If they contradict each other, print the reason, and return empty sets."""
        try:
            return resolve_cpu_sets(options.cpu_options(conf), topology)
        except ConfigError as error:
            self.app.stderr.write(f"All CPUs are shown as the host's: {error}\n")
            return CpuSets(frozenset(), frozenset(), frozenset())

    def _guests(self) -> dict[str, frozenset[int]] | None:
        """The CPUs of guests by name; None if no daemon answers."""
        guests = self.ask_if_running("guest.list")
        return None if guests is None else {guest["name"]: cpuset.parse(guest["cpus"]) for guest in guests}


class ConfigCheck(ShowOne):
    """Check the configuration on this host. Show what each CPU is used for, and the inventories that result.

    If an agent runs, the row guests of the output shows which rule matches each guest, and which settings of
    the guest would change. The exit status is 0 if the configuration is good, and 1 if the agent would refuse
    to start. The exit status is 3 if an option or section is unknown, if a value seems to contain a comment,
    or if Placement does not answer or is not configured.
    """

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Print the result, and the refusals and mistakes to standard error. Returns the exit status."""
        self._refusals: list[str] = []
        self._mistakes: list[str] = []
        super().run(parsed_args)
        for said in (*self._refusals, *self._mistakes):
            self.app.stderr.write(f"{said}\n")
        if self._refusals:
            return 1
        return MISTAKEN if self._mistakes else 0

    @contextmanager
    def _check_step(self, again: bool = True) -> Iterator[None]:
        """Note the refusal of a step, and go on, so that one call of the command reports all refusals.

        :param again: whether to note a refusal that an earlier step has caused, too.
        """
        try:
            yield
        except (ConfigError, DriverError, IdentityError, PlacementError) as error:
            if again or str(error) not in self._refusals:
                self._refusals.append(str(error))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Check the whole configuration; return the refusals and warnings."""
        conf = self.load_conf()
        topology = _read_host(conf)
        sets = CpuSets(frozenset(), frozenset(), frozenset())
        shares: dict[str, ShareSpec] = {}
        tree, rules, client = None, None, None
        warnings = []
        with self._check_step():
            warnings = list(filter(None, [check_state_folder(conf)]))
        # A user without rights to the state folder can check a configuration, too.
        with self._check_step(), suppress(OSError):
            check_owner(Path(conf.state_path), read_identity(Path(conf.host.root)))
        with self._check_step():
            check_options(conf)
        with self._check_step():
            client = PlacementClient.from_conf(conf)
        with self._check_step():
            registry, classes = load_registry(), parse_classes(conf)
            shares = classes.share_specs
            rules = build_rules(conf, registry, classes)
            read_settings(conf, registry)
        stopped = stopped_cpus(conf, topology, _root_owner(conf, None)[0].beside)
        with self._check_step():
            sets = resolve_cpu_sets(options.cpu_options(conf), topology)
            warnings += _stray_warnings(Path(conf.state_path) / STATE_FILE, sets, topology.usable - stopped)
        owner, root_is, unasked = _root_owner(conf, client)
        guests: list[dict[str, Any]] = []
        # An earlier step can have refused the same rules.
        with self._check_step(again=False):
            follows = policy_of(conf, owner.beside) == FOLLOW
            guests = check_guests(parse_policy(conf, follows), self.ask_if_running("guest.inputs") or [])
        resctrl = open_resctrl(conf)
        self._mistakes += [*find_unknown_options(conf), *filter(None, [unasked, missing_credentials(conf)])]
        driver = ""
        with self._check_step():
            driver = choose_driver(conf.guests.drivers, libvirtd_is_usable(conf.libvirt.uri), "", {}).name
        warnings += config_warnings(conf, rules, resctrl, driver)
        with self._check_step():
            platform = offered_platform(resctrl.control, shares)
            known = None if rules is None else classes.classes.keys()
            derived = derive_tree(conf, topology, sets, known, platform, owner, _own_uuid(conf))
            tree = derived.tree
            warnings += derived.warnings
        inventories = _inventory_rows(tree) if tree is not None and not self._refusals else []
        return document_columns(
            {
                "files": list(map(str, written.files_of(conf))),
                "dedicated_cpus": cpuset.format(sets.dedicated),
                "shared_cpus": cpuset.format(sets.shared),
                "emulator_cpus": cpuset.format(sets.emulator),
                "host_cpus": cpuset.format(topology.online - sets.dedicated - sets.shared),
                "provider_tree": _tree_shape(conf, owner),
                "root_provider": root_is,
                "policy": policy_of(conf, owner.beside),
                "watermarks": [watermark.name for watermark in rules.watermarks] if rules else [],
                "guests": guests,
                "inventories": inventories,
                "warnings": [
                    *sets.warnings,
                    *node_overlaps(topology.numa_nodes),
                    *warnings,
                    *filter(None, [sets.offline_warning, stopped_warning(stopped), unasked]),
                ],
                "refusals": list(self._refusals),
            }
        )


def _root_owner(conf: cfg.ConfigOpts, client: PlacementClient | None) -> tuple[RootOwner, str, str]:
    """The owner of the root provider, a description of the owner, and an error of Placement.

    The function asks Placement only if the configuration has credentials. The error is empty if Placement
    answers, or if the function does not ask.
    """
    try:
        saved = state.look_up(Path(conf.state_path) / STATE_FILE)
    except (OSError, IdentityError):  # another check of the command reports this error
        saved = AgentState()
    if client is None or missing_credentials(conf):
        owner = owner_of(conf.compute.provider_tree, saved.nova_root)
        return owner, root_keeper(owner.beside), ""
    return look_up_owner(conf, client, saved, _own_uuid(conf))


def _own_uuid(conf: cfg.ConfigOpts) -> str:
    """The uuid of the agent's own root provider; ``PLACEHOLDER`` if no uuid can be read."""
    try:
        return host_identity.look_up(Path(conf.state_path)) or PLACEHOLDER
    except (OSError, IdentityError):
        return PLACEHOLDER


def _tree_shape(conf: cfg.ConfigOpts, owner: RootOwner) -> str:
    return BESIDE if owner.beside else conf.compute.provider_tree or options.DEFAULT_SHAPE


def _stray_warnings(path: Path, sets: CpuSets, reachable: CpuSet) -> list[str]:
    """A warning for each guest in the agent's state that holds CPUs outside the CPU sets.

    :param reachable: the usable CPUs, without those that the agent must not use.
    """
    try:
        guests = state.parse(path.read_bytes()).guests
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return [f"Whether guests hold CPUs outside the CPU sets is not known: {path}: {error}"]
    return [
        stray_warning(uuid, stray)
        for uuid, guest in guests.items()
        if guest.assignment is not None
        and (stray := sets.describe_strays(guest.assignment.held_cpus, reachable))
    ]


_AMOUNTS: Final = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")
_DERIVED: Final = ("provider", "resource_class", *_AMOUNTS)

PLACEHOLDER: Final = str(uuid.UUID(int=0))
"""A uuid for a root provider that does not exist yet. Commands of this module must not write a new uuid into
the state folder.
"""


def _inventory_rows(tree: ProviderTree) -> list[dict[str, Any]]:
    """A row with the columns ``_DERIVED`` for each inventory of a provider tree."""
    return [
        {"provider": node.name, "resource_class": name, **to_api(inventory)}
        for node in tree.nodes
        for name, inventory in sorted(node.inventories.items())
    ]


class InventoryShow(AgentLister):
    """Compare the inventories and traits that the agent derives for this host with the ones in Placement."""

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--derived",
            action="store_true",
            help="show only the inventories that result from configuration and host; needs no daemon",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Derive the inventories, or request a comparison from the daemon; return the rows."""
        if parsed_args.derived:
            conf = self.load_conf()
            owner, *_ = _root_owner(conf, None)
            host_state = build_host_state(conf, None, PLACEHOLDER, open_resctrl(conf).control, owner)
            return _DERIVED, [tuple(row.values()) for row in _inventory_rows(host_state.tree)]
        return ("provider", "kind", "name", "derived", "reported", "differs", "set_by"), _comparison_rows(
            self.ask_daemon("inventory")
        )


def _comparison_rows(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    derived, reported = answer["derived"], answer["reported"]
    nothing: dict[str, Any] = {"inventories": {}, "traits": []}
    rows: list[tuple[Any, ...]] = []
    for identifier in dict.fromkeys((*derived, *reported)):
        ours, theirs = derived.get(identifier, nothing), reported.get(identifier, nothing)
        provider = ours.get("name") or theirs.get("name")
        for name in sorted({*ours["inventories"], *theirs["inventories"]}):
            one, other = ours["inventories"].get(name), theirs["inventories"].get(name)
            origins = answer["set_by"].get(identifier, {}).get(name, {})
            rows.append(
                (
                    provider,
                    "inventory",
                    name,
                    _amounts_text(one),
                    _amounts_text(other),
                    one != other,
                    _set_by(origins),
                )
            )
        for name in sorted({*ours["traits"], *theirs["traits"]}):
            mine, known = name in ours["traits"], name in theirs["traits"]
            rows.append((provider, "trait", name, mine, known, mine != known, "agent" if mine else "others"))
    return rows


def _set_by(origins: dict[str, str]) -> str:
    """The source of an inventory: ``agent``, ``others``, or the fields of others, with sources."""
    if not origins:
        return "others"
    if set(origins.values()) == {"agent"}:
        return "agent"
    return ", ".join(f"{field}: {who}" for field, who in origins.items() if who != "agent")


def _amounts_text(inventory: dict[str, Any] | None) -> str:
    return "" if inventory is None else " ".join(f"{key}={inventory[key]}" for key in _AMOUNTS)


class HostDisable(ShowOne):
    """Keep new guests away from this host until ``host enable`` runs. Running guests stay unchanged."""

    METHOD = "host.disable"
    PARAMS = ("reason",)

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--reason",
            required=True,
            help="reason for which the host is disabled; `compute-agent status` shows this text",
        )


class HostEnable(ShowOne):
    """End the effect of ``host disable``.

    New guests can start again, unless another cause keeps them away.
    """

    METHOD = "host.enable"


class ConfigShow(AgentLister):
    """Show the options that files or environment variables set, with their values.

    Passwords and other secrets are not shown.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="also show options that have their default")
        parser.add_argument("--origin", action="store_true", help="show the file that sets each option")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the configuration. Returns the columns, and a row for each option."""
        conf = self.load_conf()
        called = file_origins(conf) if conf.fleet.group else {}
        found = [each for each in settings(conf, called) if parsed_args.all or each.origin != DEFAULT]
        if not parsed_args.origin:
            return ("section", "option", "value"), [(each.section, each.option, each.value) for each in found]
        rows = [(each.section, each.option, each.value, each.origin) for each in found]
        return ("section", "option", "value", "origin"), rows


COMMANDS: Final[Commands] = {
    "config show": ConfigShow,
    "config check": ConfigCheck,
    "host disable": HostDisable,
    "host enable": HostEnable,
    "host show": HostShow,
    "inventory show": InventoryShow,
    "topology show": TopologyShow,
}
