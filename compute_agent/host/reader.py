"""Reading the topology of a host, or of a tree of /sys and /proc captured on another machine."""

import logging
from pathlib import Path

from compute_agent.host import caches, cpus, memory, processor
from compute_agent.host.memory_types import read_evidence, tell_types
from compute_agent.host.sysfiles import SysFiles
from compute_agent.host.topology import HostTopology

LOG = logging.getLogger(__name__)


def read_topology(root: Path) -> HostTopology:
    """The topology told by the /sys and /proc below ``root``.

    What no file tells is left out with a log line; nothing is raised for missing or odd files. CPUs that a
    cpuset or an affinity mask keeps from this process are part of the host all the same.
    """
    files = SysFiles(root)
    info = processor.read_cpuinfo(files)
    states = cpus.read_states(files, info)
    packages = cpus.read_packages(files, states.online)
    cores = cpus.read_cores(files, info, packages)
    nodes = memory.read_nodes(files, states.online)
    tiers = memory.read_tiers(files)
    frequencies = [core.base_frequency_khz for core in cores if core.base_frequency_khz is not None]
    found_caches = caches.read_caches(files, cores)
    if odd := files.contradictions:
        LOG.warning(
            "%d files of %s do not name the CPU that they are of, such as %s: what is beside them is used",
            len(odd),
            files.root / cpus.CPU_FOLDER,
            odd[0],
        )
    for warning in memory.overlaps(nodes):
        LOG.warning("%s", warning)
    return HostTopology(
        packages=packages,
        dies=cpus.read_dies(files, packages),
        clusters=cpus.read_clusters(files, packages),
        cores=cores,
        caches=found_caches,
        numa_nodes=nodes,
        online=states.online,
        offline=states.offline,
        present=states.present,
        distances=memory.read_distances(files, nodes),
        memory_tiers=tiers,
        memory_types=tell_types(nodes, read_evidence(files, nodes, tiers)),
        cpu_capacities=cpus.read_capacities(files, states.online),
        memory_kib=memory.read_memory_kib(files),
        cpu_flags=processor.flags_of(info, states.online),
        architecture=processor.architecture_of(files, info),
        vendor=info.first("vendor_id"),
        model_name=processor.model_of(info),
        base_frequency_khz=max(frequencies, default=None),
    )
