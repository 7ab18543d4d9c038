"""Which offline CPUs of this host count as present, and the topology with them.

A CPU counts while a power manager may have taken it offline because no guest holds it: nova-compute, of
whatever ``[compute] cpu_dedicated_set`` names, where its root provider is used.
"""

from __future__ import annotations

from pathlib import Path

from oslo_config import cfg

from compute_agent.host.cpus import read_online
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.offline_cpus import recall, remember, with_parked
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet


def parkable_cpus(conf: cfg.ConfigOpts, beside: bool) -> CpuSet:
    """The CPUs that a power manager of this configuration may take offline.

    :param beside: whether nova-compute owns the root provider.
    """
    text = conf.compute.cpu_dedicated_set
    if not beside or text is None:
        return frozenset()
    try:
        return cpuset.parse(text)
    except cpuset.BadCpuSet:  # refused, with the reason, where the sets are resolved
        return frozenset()


def known_topology(conf: cfg.ConfigOpts, topology: HostTopology, beside: bool) -> HostTopology:
    """A topology that was just read, with the parked CPUs that are remembered. Nothing is kept."""
    parkable = parkable_cpus(conf, beside)
    if not parkable & topology.offline:
        return topology
    return with_parked(topology, recall(Path(conf.state_path)), parkable)


def learned_topology(conf: cfg.ConfigOpts, topology: HostTopology, beside: bool) -> HostTopology:
    """As :func:`known_topology`, for the agent: what is seen now is remembered in the state folder."""
    parkable = parkable_cpus(conf, beside)
    # A CPU that went offline while files were read may have lost some of them: that is nothing to remember.
    if not parkable or read_online(Path(conf.host.root)) != topology.online:
        return known_topology(conf, topology, beside)
    return with_parked(topology, remember(Path(conf.state_path), topology), parkable)
