"""Creates a small cloud for the pages: hosts that are open, full or disabled, some with very long names."""

import uuid
from typing import Any

from tests.placement.builders import make_provider, new_claim, post_claims, put_allocation
from tests.placement.moving_clock import after
from tests.placement.running import Admin

_NAMESPACE = uuid.UUID("3d0c6a52-4f29-4a3c-9a4e-0f8a2f0d7c11")
LONG = "Rechenzentrumsverbundsverwaltungsknoten-fuer-Hochgeschwindigkeitsdatenverarbeitung-0815.Rechenzentrum"
LONG_TRAIT = "CUSTOM_HOCHVERFUEGBARKEITSCLUSTERMITDONAUDAMPFSCHIFFFAHRTSGESELLSCHAFTSKAPITAENSZERTIFIZIERUNG"
AGGREGATE = str(uuid.uuid5(_NAMESPACE, "aggregate"))
PROJECT = "7c6f6ab1c3c24d5b8d3b3f4f0f1d2c3e"
OTHER_PROJECT = "0b7d2e2f9f4c4f7f8a2b1c0d9e8f7a6b"


def uuid_of(name: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, name))


NEIGHBOURS: dict[str, str | float] = {
    "neighbour.measured_at": 1_700_000_000,
    "neighbour.valid_until": 4_000_000_000,
    "neighbour.cache.0": "18250.5 MB/s of 25600, 21.5 MiB of 32",
    "neighbour.cache.1": "940 MB/s of 25600, 30 MiB of 32",
    "neighbour.guest.0": f"{uuid_of('guest-1')} LS: 920 MB/s, 24.3 MiB",
    "neighbour.guest.1": f"{uuid_of('guest-2')} BE: 17900 MB/s, 9 MiB",
    "neighbour.limit.0": (
        f"{uuid_of('guest-2')} cpu_quota: watermarks; memory_bandwidth: interference for {uuid_of('guest-1')}"
    ),
}
"""The use of caches on a host, as its agent writes it into attributes."""


def inventory(total: int, **other: Any) -> dict[str, Any]:
    return {"total": total, "max_unit": total, **other}


def numa_host(
    name: str, *, disabled: bool = False, more_traits: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Create a host with two NUMA nodes, and an L3 domain below each node."""
    traits = ["COMPUTE_NODE", *more_traits] + (["COMPUTE_STATUS_DISABLED"] if disabled else [])
    tree = [_provider(name, None, {"DISK_GB": inventory(4000, reserved=50)}, traits, [AGGREGATE])]
    for node in range(2):
        numa = f"{name}_NUMA{node}"
        cpus = {
            "PCPU": inventory(24),
            "VCPU": inventory(8, allocation_ratio=8.0, max_unit=64),
            "MEMORY_MB": inventory(131072, reserved=1024, step_size=2),
        }
        tree.append(_provider(numa, name, cpus, ["HW_NUMA_ROOT", "HW_CPU_HYPERTHREADING"]))
        cache = {"LLC": inventory(15, reserved=1), "MBA": inventory(100, min_unit=10, step_size=10)}
        tree.append(_provider(f"{numa}_L3_0", numa, cache, []))
    return tree


def _provider(
    name: str,
    parent: str | None,
    inventories: dict[str, Any],
    traits: list[str],
    aggregates: list[str] | None = None,
) -> dict[str, Any]:
    return {
        "uuid": uuid_of(name),
        "name": name,
        "parent_provider_uuid": None if parent is None else uuid_of(parent),
        "generation": None,
        "inventories": inventories,
        "traits": traits,
        "aggregates": aggregates or [],
    }


def make(admin: Admin) -> None:
    """Create eight hosts, a shared disk, and guests on some of the hosts."""
    for trait in ("CUSTOM_GOLD", LONG_TRAIT):
        _ok(admin("PUT", f"/traits/{trait}"))
    hosts = [numa_host(f"compute-{number}") for number in (1, 2, 10)]
    hosts.append(numa_host("compute-3", more_traits=("CUSTOM_GOLD",)))
    hosts.append(numa_host("compute-9", disabled=True))
    hosts.append(numa_host(LONG, more_traits=(LONG_TRAIT,)))
    flat = {
        "VCPU": inventory(64, allocation_ratio=4.0),
        "MEMORY_MB": inventory(262144),
        "DISK_GB": inventory(2000),
    }
    hosts.append([_provider("edge-1", None, flat, ["COMPUTE_NODE"])])
    hosts.append(
        [_provider("ceph", None, {"DISK_GB": inventory(900000)}, ["MISC_SHARES_VIA_AGGREGATE"], [AGGREGATE])]
    )
    for host in hosts:
        _ok(admin("POST", "/ext/v1/trees", json={"resource_providers": host}))
    positions: dict[str, str | float] = {
        f"position.{uuid_of('guest-1')}": "cpus 4-7,28-31; L3 0: 0-3 of 15; L3 1: 0-1,14 of 15",
        f"position.{uuid_of('guest-2')}": "cpus <b>; L3 0: 9-99 of 15; L3 x: 1 of 2; L3 1: 4-8 of 15",
        f"position.{uuid_of('nobody')}": "cpus 8",
        "watermark.busy": "cpu_usage: throttle_down 90 %, throttle_up <80 %",
    }
    follow(admin, "compute-1", {"fleet.group": "edge", "fleet.generation": 7} | positions | NEIGHBOURS)
    follow(admin, "compute-3", {"fleet.group": "edge", "fleet.generation": 7})
    follow(admin, "compute-10", {"fleet.group": "edge", "fleet.generation": 8})
    follow(admin, "compute-2_NUMA0", {"fleet.group": "edge", "fleet.generation": 6})
    trouble = (
        f"the revision {LONG_TRAIT} generation 7 is not taken up: <b>[compute] cpu_dedicated_set</b>: CPU 99"
    )
    follow(admin, LONG, {"fleet.group": LONG_TRAIT, "fleet.generation": 0, "fleet.trouble": trouble})
    claim(
        admin,
        "guest-1",
        {"compute-1_NUMA0": {"PCPU": 8, "MEMORY_MB": 32768}, "compute-1_NUMA0_L3_0": {"LLC": 4}},
    )
    claim(
        admin, "guest-2", {"compute-1": {"DISK_GB": 300}, "compute-1_NUMA1": {"VCPU": 16, "MEMORY_MB": 65536}}
    )
    for node in range(2):  # all CPUs of a host, and little of its memory
        numa = f"compute-2_NUMA{node}"
        claim(
            admin, f"full-{node}", {numa: {"PCPU": 24, "VCPU": 64, "MEMORY_MB": 8192}}, project=OTHER_PROJECT
        )
    claim(admin, "guest-9", {"compute-9_NUMA0": {"PCPU": 4, "MEMORY_MB": 16384}})


def follow(admin: Admin, name: str, attributes: dict[str, str | float]) -> None:
    """Write the attributes by which the agent of a host reports the settings that the host has applied."""
    path = f"/ext/v1/resource_providers/{uuid_of(name)}/attributes"
    generation = admin("GET", path).json["resource_provider_generation"]
    body = {"attributes": attributes, "resource_provider_generation": generation}
    _ok(admin("PUT", path, json=body))


def claim(admin: Admin, name: str, amounts: dict[str, dict[str, int]], project: str = PROJECT) -> None:
    held = {uuid_of(host): resources for host, resources in amounts.items()}
    owner = {"project_id": project, "user_id": "0a1b2c3d4e5f60718293a4b5c6d7e8f9"}
    _ok(put_allocation(admin, held, uuid_of(name), **owner))


def book_windows(admin: Admin) -> dict[str, str]:
    """Create a host with a window and a claim that ends before it; return the two uuids."""
    host = make_provider(admin, "calendar-1", provider=uuid_of("calendar-1"), VCPU=8)
    found = {"window": uuid_of("window"), "claim": uuid_of("claim")}
    query = {"query": "resources=VCPU:6", "allowed_hosts": [host], "user_id": "user"}
    times = {"starts_at": after(2 * 86_400), "expires_at": after(4 * 86_400)}
    body = {"uuid": found["window"], "project_id": PROJECT, **query, **times}
    _ok(admin("POST", "/ext/v1/reservations", json=body))
    claim = new_claim(consumer_uuid=found["claim"], **query | {"project_id": OTHER_PROJECT})
    _ok(post_claims(admin, claim, ends_at=after(86_400)))
    return found


def _ok(answer: Any) -> None:
    assert answer.status_code < 300, answer.get_data(as_text=True)
