"""Made-up machines for tests, with equal packages, nodes and caches."""

from collections.abc import Mapping

from compute_agent.host.topology import CpuCache, CpuCore, CpuPackage, HostTopology, NumaNode


def machine(
    *,
    packages: int = 1,
    nodes: int = 1,
    l3: int = 1,
    cores: int,
    threads: int = 1,
    memory_kib: int = 8 << 20,
    offline: frozenset[int] = frozenset(),
    l3_spans_nodes: bool = False,
    more_nodes: Mapping[int, int] | None = None,
    **fields: object,
) -> HostTopology:
    """A machine of equal packages.

    Each package has `nodes`, each node `l3` domains, each domain `cores`, and each core `threads`. With
    `l3_spans_nodes` a package has one L3 cache, and each node has `cores` cores. `more_nodes` have memory
    without CPUs, and `memory_kib` is the memory of each other node. CPUs are numbered through the threads of
    a core. L3 ids are 10 apart, since ids may have gaps.
    """
    per_node = (1 if l3_spans_nodes else l3) * cores * threads
    count = packages * nodes * per_node
    online = frozenset(range(count)) - offline

    def blocks(size: int) -> list[frozenset[int]]:
        return [frozenset(range(start, start + size)) & online for start in range(0, count, size)]

    l3_size = nodes * per_node if l3_spans_nodes else cores * threads
    package_size = nodes * per_node
    numa = [NumaNode(n, cpus, memory_kib) for n, cpus in enumerate(blocks(per_node))]
    numa += [NumaNode(n, frozenset(), memory) for n, memory in (more_nodes or {}).items()]
    return HostTopology(
        packages=tuple(CpuPackage(n, cpus) for n, cpus in enumerate(blocks(package_size))),
        dies=(),
        clusters=(),
        cores=tuple(
            CpuCore(n, min(cpus) // package_size, cpus) for n, cpus in enumerate(blocks(threads)) if cpus
        ),
        caches=tuple(
            CpuCache(3, "unified", 10 * n, 16384, 16, cpus) for n, cpus in enumerate(blocks(l3_size)) if cpus
        ),
        numa_nodes=tuple(numa),
        online=online,
        offline=offline,
        present=frozenset(range(count)),
        **fields,  # type: ignore[arg-type]  # of many types
    )
