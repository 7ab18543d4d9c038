"""Nova's queries to a cloud: families of queries by name, in which all queries differ.

Flavors, image properties, aggregates of zones and tenants are random, from a generator with a seed. So the
n-th query of a family is always the same. As in Nova, ``root_required`` excludes hosts that are out of
service. Only "traits" forbids a trait in the group without a suffix: with pools on PostgreSQL, the reference
answers some such queries with 500.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

from benchmarks.mixed import DISABLED, GPU, NIC, NVME, TENANTS, TRAITS, ZONES, MixedCloud
from benchmarks.worlds import uuid_of

_SEED: Final = 18
Family = Callable[[random.Random, MixedCloud], tuple[str, ...]]
"""Returns the parts of the query string of one query."""


def _amounts(rng: random.Random, cpus: int = 2, name: str = "VCPU") -> str:
    return f"{name}:{cpus},MEMORY_MB:{cpus * 2048 + rng.randrange(-1000, 1000)}"


def _guest_resources(rng: random.Random, cpus: int = 2) -> str:
    return f"resources={_amounts(rng, cpus)},{_disk_amount(rng)}"


def _disk_amount(rng: random.Random) -> str:
    return f"DISK_GB:{rng.randrange(5, 200)}"


def _random_zone(rng: random.Random) -> str:
    return f"member_of={rng.choice(ZONES)}"


def _plain_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (_guest_resources(rng), f"root_required=!{DISABLED}")


def _zone_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (_guest_resources(rng), f"root_required=!{DISABLED}", _random_zone(rng))


def _tenant_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    chosen = rng.sample(TENANTS, 4)
    return (
        _guest_resources(rng),
        f"root_required=COMPUTE_IMAGE_TYPE_QCOW2,!{DISABLED}",
        _random_zone(rng),
        f"member_of=in:{','.join(chosen[:3])}",
        f"member_of=!{chosen[3]}",
    )


def _large_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (_guest_resources(rng, 12), f"root_required=!{DISABLED}")


def _trait_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    chosen = rng.sample(TRAITS, 3)
    return (
        _guest_resources(rng),
        f"required={chosen[0]},!{chosen[1]},!{DISABLED}",
        f"root_required=!{chosen[2]}",
    )


def _any_trait_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    chosen = rng.sample(TRAITS, 4)
    return (
        _guest_resources(rng),
        f"required=in:{','.join(chosen[:3])}",
        f"root_required=!{chosen[3]}",
        _random_zone(rng),
    )


def _dedicated_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        f"resources={_disk_amount(rng)}",
        f"resources_CPU={_amounts(rng, 2, 'PCPU')}",
        f"root_required=!{DISABLED}",
    )


def _node_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        f"resources={_disk_amount(rng)}",
        f"resources_NUMA0={_amounts(rng, 4)}",
        f"root_required=!{DISABLED}",
        "group_policy=none",
        _random_zone(rng),
    )


def _two_node_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        f"resources={_disk_amount(rng)}",
        f"resources_NUMA0={_amounts(rng, 2)}",
        f"resources_NUMA1={_amounts(rng, 2)}",
        f"root_required=!{DISABLED}",
        "group_policy=isolate",
    )


def _device_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        _guest_resources(rng),
        f"resources_PCI={NIC}:1",
        f"root_required=!{DISABLED}",
        "group_policy=none",
    )


def _two_device_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        _guest_resources(rng),
        f"resources_PCI0={NVME}:1",
        f"resources_PCI1={NVME}:1",
        f"root_required=!{DISABLED}",
        "group_policy=isolate",
    )


def _node_device_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        f"resources={_disk_amount(rng)}",
        f"resources_NUMA0={_amounts(rng, 2)}",
        f"resources_PCI0={NIC}:1",
        "same_subtree=_NUMA0,_PCI0",
        f"root_required=!{DISABLED}",
        "group_policy=none",
    )


def _two_node_device_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    return (
        f"resources={_disk_amount(rng)}",
        f"resources_NUMA0={_amounts(rng, 1)}",
        f"resources_PCI0={GPU}:1",
        f"resources_NUMA1={_amounts(rng, 1)}",
        f"resources_PCI1={GPU}:1",
        "same_subtree=_NUMA0,_PCI0",
        "same_subtree=_NUMA1,_PCI1",
        f"root_required=!{DISABLED}",
        "group_policy=isolate",
    )


def _in_tree_query(rng: random.Random, cloud: MixedCloud) -> tuple[str, ...]:
    host = uuid_of(f"{cloud.name}-{rng.randrange(200)}")
    return (
        f"resources={_disk_amount(rng)}",
        f"resources_CPU={_amounts(rng)}",
        f"in_tree_CPU={host}",
        "group_policy=none",
    )


FAMILIES: Final[Mapping[str, Family]] = {
    "any host": _plain_query,
    "zone": _zone_query,
    "zone and tenants": _tenant_query,
    "large guest": _large_query,
    "traits": _trait_query,
    "any of some traits": _any_trait_query,
    "dedicated CPUs": _dedicated_query,
    "one node": _node_query,
    "two nodes": _two_node_query,
    "device": _device_query,
    "two devices": _two_device_query,
    "node with device": _node_device_query,
    "two nodes with devices": _two_node_device_query,
    "one host": _in_tree_query,
}


def query_paths(name: str, cloud: MixedCloud, limit: int, seed: int = _SEED) -> Iterator[str]:
    """Yield the queries of a family without end."""
    for number in count():
        rng = random.Random(f"{seed} {name} {number}")
        yield "/allocation_candidates?" + "&".join((*FAMILIES[name](rng, cloud), f"limit={limit}"))
