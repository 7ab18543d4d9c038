"""/sys/devices/system/cpu/cpuN/cache: every cache once, with the CPUs that share it.

File formats: Documentation/ABI/testing/sysfs-devices-system-cpu of the kernel.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from compute_agent.host.cpus import CPU_FOLDER
from compute_agent.host.sysfiles import SysFiles
from compute_agent.host.topology import CpuCache, CpuCore

LOG = logging.getLogger(__name__)

_SIZE: Final = re.compile(r"([0-9]+)([KMG]?)", re.ASCII)
_KIB: Final = {"": 1 / 1024, "K": 1, "M": 1024, "G": 1024 * 1024}

_Kind = tuple[int, str]


def read_caches(files: SysFiles, cores: Iterable[CpuCore]) -> tuple[CpuCache, ...]:
    """The caches by level, type and id; empty where the kernel tells none.

    Caches of one level and type are disjoint, whatever the files say. Ids are the kernel's where all caches
    of the level and type have one of their own, and else the number of the lowest CPU, which stays the same
    as long as that CPU is online (the rank among the caches would change whenever a package is added).
    """
    found: dict[_Kind, list[tuple[CpuCache, int | None]]] = defaultdict(list)
    covered: dict[_Kind, set[int]] = defaultdict(set)
    threads_of = {cpu: core.cpus for core in cores for cpu in core.cpus}
    online = frozenset(threads_of)
    for cpu in sorted(online):
        cpu_folder = f"{CPU_FOLDER}/cpu{cpu}/cache"
        for index in files.numbered(cpu_folder, "index"):
            folder = f"{cpu_folder}/index{index}"
            level, kind = files.number(f"{folder}/level"), (files.text(f"{folder}/type") or "").lower()
            if level is None or kind not in ("unified", "data", "instruction"):
                continue
            seen = covered[level, kind]
            if cpu in seen:
                continue
            # Where nobody is listed (Itanium), the threads of the core share it all the same.
            sharing = files.peers(cpu, folder, "shared_cpu_list", "shared_cpu_map") or threads_of[cpu]
            cpus = (sharing & online - seen) | {cpu}
            seen |= cpus
            cache = CpuCache(
                level=level,
                type=kind,
                id=min(cpus),
                size_kib=_size_kib(files, folder),
                ways=files.number(f"{folder}/ways_of_associativity") or None,
                cpus=cpus,
            )
            found[level, kind].append((cache, files.number(f"{folder}/id")))
    if not found:
        LOG.info("No caches are listed in %s: cache domains are not known", files.root / CPU_FOLDER)
    return tuple(cache for _, caches in sorted(found.items()) for cache in _with_ids(caches))


def _with_ids(caches: list[tuple[CpuCache, int | None]]) -> list[CpuCache]:
    """The caches of one level and type, with the kernel's ids if these tell them apart, by id."""
    ids = {known for _, known in caches if known is not None}
    if len(ids) == len(caches):
        named = [replace(cache, id=cache.id if known is None else known) for cache, known in caches]
    else:
        named = [cache for cache, _ in caches]
    return sorted(named, key=lambda cache: cache.id)


def _size_kib(files: SysFiles, folder: str) -> int | None:
    """The size in KiB; None where the file is missing or tells 0, as virtual machines do."""
    text = files.text(f"{folder}/size")
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        LOG.warning("%s holds %r instead of a size: ignored", files.root / folder / "size", text)
        return None
    return int(int(match[1]) * _KIB[match[2]]) or None
