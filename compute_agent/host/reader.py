"""Reads the topology of a host, or of a tree of /sys and /proc captured on another machine.

Caches are read from /sys/devices/system/cpu/cpuN/cache. The file format is that of
Documentation/ABI/testing/sysfs-devices-system-cpu of the kernel.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from compute_agent.host import cpus, memory
from compute_agent.host.cpus import CPU_FOLDER
from compute_agent.host.kernel_files import SysFiles
from compute_agent.host.memory import read_evidence, tell_types
from compute_agent.host.topology import CpuCache, CpuCore, HostTopology

LOG = logging.getLogger(__name__)

_SIZE: Final = re.compile(r"([0-9]+)([KMG]?)", re.ASCII)
_KIB: Final = {"": 1 / 1024, "K": 1, "M": 1024, "G": 1024 * 1024}

_Kind = tuple[int, str]


def read_caches(files: SysFiles, cores: Iterable[CpuCore]) -> tuple[CpuCache, ...]:
    """Read the caches, ordered by level, type and id; none if the kernel shows none.

    Caches of one level and type never overlap, even if files contradict each other. If each cache of a level
    and type has another id in the kernel, caches have the kernel's ids. Otherwise the id of a cache is the
    number of its lowest CPU.
    """
    found: dict[_Kind, list[tuple[CpuCache, int | None]]] = defaultdict(list)
    covered: dict[_Kind, set[int]] = defaultdict(set)
    threads_of = {cpu: core.cpus for core in cores for cpu in core.cpus}
    online = frozenset(threads_of)
    for cpu in sorted(online):
        cpu_folder = f"{CPU_FOLDER}/cpu{cpu}/cache"
        for index in files.list_numbers(cpu_folder, "index"):
            folder = f"{cpu_folder}/index{index}"
            level, kind = files.read_number(f"{folder}/level"), (files.text(f"{folder}/type") or "").lower()
            if level is None or kind not in ("unified", "data", "instruction"):
                continue
            seen = covered[level, kind]
            if cpu in seen:
                continue
            # If no CPU is listed (Itanium), at least the threads of the core share the cache.
            sharing = files.read_peers(cpu, folder, "shared_cpu_list", "shared_cpu_map") or threads_of[cpu]
            cpus = (sharing & online - seen) | {cpu}
            seen |= cpus
            cache = CpuCache(
                level=level,
                type=kind,
                id=min(cpus),  # A position among the caches would change when a package is added.
                size_kib=_size_kib(files, folder),
                ways=files.read_number(f"{folder}/ways_of_associativity") or None,
                cpus=cpus,
            )
            found[level, kind].append((cache, files.read_number(f"{folder}/id")))
    if not found:
        LOG.info(
            "The folder %s lists no caches, so the agent knows no cache domains", files.root / CPU_FOLDER
        )
    return tuple(cache for _, caches in sorted(found.items()) for cache in _with_ids(caches))


def _with_ids(caches: list[tuple[CpuCache, int | None]]) -> list[CpuCache]:
    """The caches of one level and type, ordered by id; with the kernel's ids if each cache has its own id."""
    ids = {known for _, known in caches if known is not None}
    if len(ids) == len(caches):
        named = [replace(cache, id=cache.id if known is None else known) for cache, known in caches]
    else:
        named = [cache for cache, _ in caches]
    return sorted(named, key=lambda cache: cache.id)


def _size_kib(files: SysFiles, folder: str) -> int | None:
    """The size of a cache in KiB; None if the file is missing or contains 0, as on virtual machines."""
    text = files.text(f"{folder}/size")
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        LOG.warning(
            "The agent ignores the file %s, which has %r instead of a size",
            files.root / folder / "size",
            text,
        )
        return None
    return int(int(match[1]) * _KIB[match[2]]) or None


def read_topology(root: Path) -> HostTopology:
    """Read the topology of the host with its /sys and /proc below ``root``.

    If a file is missing, the function logs this and leaves out that part of the topology. Missing or
    unexpected files raise no error. CPUs outside of the agent's own cpuset and affinity are part of the host.
    """
    files = SysFiles(root)
    info = cpus.read_cpuinfo(files)
    present, online = cpus.read_states(files, info)
    packages = cpus.read_packages(files, online)
    cores = cpus.read_cores(files, info, packages)
    nodes = memory.read_nodes(files, online)
    tiers = memory.read_tiers(files)
    frequencies = [core.base_frequency_khz for core in cores if core.base_frequency_khz is not None]
    found_caches = read_caches(files, cores)
    if odd := files.contradictions:
        LOG.warning(
            "%d files of %s, such as %s, do not list the CPU that they belong to; the agent uses other files"
            " instead",
            len(odd),
            files.root / cpus.CPU_FOLDER,
            odd[0],
        )
    for warning in memory.node_overlaps(nodes):
        LOG.warning("The NUMA nodes of the host overlap: %s", warning)
    return HostTopology(
        packages=packages,
        dies=cpus.read_dies(files, packages),
        clusters=cpus.read_clusters(files, packages),
        cores=cores,
        caches=found_caches,
        numa_nodes=nodes,
        online=online,
        offline=present - online,
        present=present,
        distances=memory.read_distances(files, nodes),
        memory_tiers=tiers,
        memory_types=tell_types(nodes, read_evidence(files, nodes, tiers)),
        cpu_capacities=cpus.read_capacities(files, online),
        memory_kib=memory.read_memory_kib(files),
        cpu_flags=cpus.flags_of(info, online),
        architecture=cpus.architecture_of(files, info),
        vendor=info.first_value("vendor_id"),
        model_name=info.first_value("model name", "cpu"),
        base_frequency_khz=max(frequencies, default=None),
    )
