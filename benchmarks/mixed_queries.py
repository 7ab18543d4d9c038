"""What Nova asks of a cloud: a family of questions by name, no two of which are the same.

Flavors, image properties, aggregates of zones and tenants come at random, from a generator with a seed, so
that the n-th question of a family is always the same one. Hosts that are out of service are kept out with
``root_required``, as Nova does; a trait that the group without a suffix forbids stands in "traits" only, as
the reference answers some such questions 500 where there are pools (on PostgreSQL).
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

from benchmarks.mixed import DISABLED, GPU, NIC, NVME, TENANTS, TRAITS, ZONES, Cloud
from benchmarks.worlds import uuid_of

_SEED: Final = 18
Family = Callable[[random.Random, Cloud], tuple[str, ...]]
"""The parts of the query string of one question."""


def _amounts(rng: random.Random, cpus: int = 2, name: str = "VCPU") -> str:
    return f"{name}:{cpus},MEMORY_MB:{cpus * 2048 + rng.randrange(-1000, 1000)}"


def _guest(rng: random.Random, cpus: int = 2) -> str:
    return f"resources={_amounts(rng, cpus)},{_disk(rng)}"


def _disk(rng: random.Random) -> str:
    return f"DISK_GB:{rng.randrange(5, 200)}"


def _zone(rng: random.Random) -> str:
    return f"member_of={rng.choice(ZONES)}"


def _plain(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (_guest(rng), f"root_required=!{DISABLED}")


def _zoned(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (_guest(rng), f"root_required=!{DISABLED}", _zone(rng))


def _tenants(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    chosen = rng.sample(TENANTS, 4)
    return (
        _guest(rng),
        f"root_required=COMPUTE_IMAGE_TYPE_QCOW2,!{DISABLED}",
        _zone(rng),
        f"member_of=in:{','.join(chosen[:3])}",
        f"member_of=!{chosen[3]}",
    )


def _large(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (_guest(rng, 12), f"root_required=!{DISABLED}")


def _traits(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    chosen = rng.sample(TRAITS, 3)
    return (_guest(rng), f"required={chosen[0]},!{chosen[1]},!{DISABLED}", f"root_required=!{chosen[2]}")


def _any_traits(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    chosen = rng.sample(TRAITS, 4)
    return (_guest(rng), f"required=in:{','.join(chosen[:3])}", f"root_required=!{chosen[3]}", _zone(rng))


def _dedicated(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (
        f"resources={_disk(rng)}",
        f"resources_CPU={_amounts(rng, 2, 'PCPU')}",
        f"root_required=!{DISABLED}",
    )


def _node(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (
        f"resources={_disk(rng)}",
        f"resources_NUMA0={_amounts(rng, 4)}",
        f"root_required=!{DISABLED}",
        "group_policy=none",
        _zone(rng),
    )


def _two_nodes(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (
        f"resources={_disk(rng)}",
        f"resources_NUMA0={_amounts(rng, 2)}",
        f"resources_NUMA1={_amounts(rng, 2)}",
        f"root_required=!{DISABLED}",
        "group_policy=isolate",
    )


def _device(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (_guest(rng), f"resources_PCI={NIC}:1", f"root_required=!{DISABLED}", "group_policy=none")


def _two_devices(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (
        _guest(rng),
        f"resources_PCI0={NVME}:1",
        f"resources_PCI1={NVME}:1",
        f"root_required=!{DISABLED}",
        "group_policy=isolate",
    )


def _node_and_device(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (
        f"resources={_disk(rng)}",
        f"resources_NUMA0={_amounts(rng, 2)}",
        f"resources_PCI0={NIC}:1",
        "same_subtree=_NUMA0,_PCI0",
        f"root_required=!{DISABLED}",
        "group_policy=none",
    )


def _two_nodes_and_devices(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    return (
        f"resources={_disk(rng)}",
        f"resources_NUMA0={_amounts(rng, 1)}",
        f"resources_PCI0={GPU}:1",
        f"resources_NUMA1={_amounts(rng, 1)}",
        f"resources_PCI1={GPU}:1",
        "same_subtree=_NUMA0,_PCI0",
        "same_subtree=_NUMA1,_PCI1",
        f"root_required=!{DISABLED}",
        "group_policy=isolate",
    )


def _in_tree(rng: random.Random, cloud: Cloud) -> tuple[str, ...]:
    host = uuid_of(f"{cloud.name}-{rng.randrange(200)}")
    return (
        f"resources={_disk(rng)}",
        f"resources_CPU={_amounts(rng)}",
        f"in_tree_CPU={host}",
        "group_policy=none",
    )


FAMILIES: Final[Mapping[str, Family]] = {
    "any host": _plain,
    "zone": _zoned,
    "zone and tenants": _tenants,
    "large guest": _large,
    "traits": _traits,
    "any of some traits": _any_traits,
    "dedicated CPUs": _dedicated,
    "one node": _node,
    "two nodes": _two_nodes,
    "device": _device,
    "two devices": _two_devices,
    "node with device": _node_and_device,
    "two nodes with devices": _two_nodes_and_devices,
    "one host": _in_tree,
}


def paths(name: str, cloud: Cloud, limit: int, seed: int = _SEED) -> Iterator[str]:
    """The questions of a family, one after the other, without end."""
    for number in count():
        rng = random.Random(f"{seed} {name} {number}")
        yield "/allocation_candidates?" + "&".join((*FAMILIES[name](rng, cloud), f"limit={limit}"))
