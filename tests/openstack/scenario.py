"""The steps of a cloud's history: everything that makes Nova write to Placement."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.openstack.client import ADMIN
from tests.openstack.cloud import FAKE, REAL, Cloud, wait_for_cloud
from tests.openstack.record import Record, record
from tests.openstack.servers import MIB, Servers

_FIRST, _SECOND = FAKE
_ORPHAN: Final = str(uuid.UUID(int=16))
_MOVE: Final = "move of"
_FOUND, _DELETED = 3, 4
"""Exit statuses of `nova-manage placement audit`."""


def _has_huge_pages() -> bool:
    """Whether this machine has enough huge pages for a guest."""
    free = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    mounted = " hugetlbfs " in Path("/proc/mounts").read_text()
    return mounted and free.exists() and 2 * int(free.read_text()) >= MIB


_HUGE_PAGES: Final = _has_huge_pages()
Act = Callable[["Scene"], None]
STEPS: Final[list[tuple[str, Act]]] = []
"""Steps by name, in their order."""


def step(name: str, steps: list[tuple[str, Act]] = STEPS) -> Callable[[Act], Act]:
    """Register the function as the next of the steps."""

    def register(act: Act) -> Act:
        steps.append((name, act))
        return act

    return register


@dataclass
class Scene:
    """A cloud, and its servers."""

    cloud: Cloud
    servers: Servers

    def record(self) -> Record:
        """Read the content of its Placement; the memory of this machine may change meanwhile."""
        known = record(self.cloud.placement, self.servers.names | self._moves())
        memory = known.providers.get(REAL, {"inventories": {}})["inventories"].get("MEMORY_MB", {})
        memory |= {name: "the machine's" for name in ("total", "max_unit") if name in memory}
        return known

    def claim(self, name: str) -> Any:
        """Return the allocations of a server."""
        return self.cloud.placement.get(f"/allocations/{self.servers.uuid(name)}")

    def is_kept_elsewhere(self) -> bool:
        """Whether a moving server has allocations on its other host."""
        return any(name.startswith(_MOVE) for name in self.record().allocations)

    def _moves(self) -> dict[str, str]:
        """Return the consumers with the allocations of servers on their other host, by uuid."""
        listed = self.cloud.compute.get("/os-migrations")["migrations"]
        names = self.servers.names
        return {each["uuid"]: f"{_MOVE} {names[each['instance_uuid']]}" for each in listed}


def play(cloud: Cloud) -> Iterator[tuple[str, Record]]:
    """Run the steps; return the content after each, when it no longer changes."""
    scene = Scene(cloud, Servers(cloud))
    for name, act in STEPS:
        act(scene)
        cloud.check()
        yield name, _settled(scene)


def _settled(scene: Scene) -> Record:
    """Wait until nothing changes, because Nova answers before it has written everything."""
    last: list[Record] = []

    def is_settled() -> bool:
        last.append(scene.record())
        return scene.servers.is_settled() and last[-2:-1] == last[-1:]

    wait_for_cloud(is_settled, "Placement does not change any more")
    return last[-1]


# The hosts, and what runs on them


@step("hosts report")
def _(scene: Scene) -> None:
    reported = {REAL: {"VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_LLC"}}
    reported |= {name: reported[REAL] - {"PCPU"} for name in FAKE}

    def have_reported() -> bool:
        providers = scene.record().providers
        return {name: set(each["inventories"]) for name, each in providers.items()} == reported

    wait_for_cloud(have_reported, "every host is known with all it has")
    flavors = scene.servers.flavor
    flavors("shared")
    flavors("dedicated", hw_cpu_policy="dedicated")
    flavors("isolate", hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate")
    flavors("mixed", vcpus=2, hw_cpu_policy="mixed", hw_cpu_dedicated_mask="^0")
    flavors("numa", hw_numa_nodes="1")
    flavors("huge-pages", hw_mem_page_size="2MB")
    flavors("cache", disk=0, resources_CUSTOM_LLC="4")
    flavors("much-cache", resources_CUSTOM_LLC="11")
    flavors("trait", trait_CUSTOM_FAST="required")
    flavors("not-there", trait_HW_CPU_X86_AMD_SEV="required")


@step("boot a guest of shared CPUs")
def _(scene: Scene) -> None:
    scene.servers.boot("shared", "shared", REAL)


@step("stop it")
def _(scene: Scene) -> None:
    scene.servers.act("shared", "os-stop", until="SHUTOFF")


@step("start it")
def _(scene: Scene) -> None:
    scene.servers.act("shared", "os-start", until="ACTIVE")


@step("reboot it")
def _(scene: Scene) -> None:
    scene.servers.act("shared", "reboot", {"type": "HARD"}, until="ACTIVE")


@step("rebuild it")
def _(scene: Scene) -> None:
    scene.servers.rebuild("shared")


@step("boot one with a dedicated CPU")
def _(scene: Scene) -> None:
    scene.servers.boot("dedicated", "dedicated", REAL)


@step("boot another one, which is one too many")
def _(scene: Scene) -> None:
    scene.servers.boot("one-too-many", "dedicated", REAL, until="ERROR")


@step("delete it")
def _(scene: Scene) -> None:
    scene.servers.delete("dedicated")


@step("boot one whose dedicated CPU has no sibling in use")
def _(scene: Scene) -> None:
    scene.servers.boot("isolate", "isolate", REAL)


@step("delete that")
def _(scene: Scene) -> None:
    scene.servers.delete("isolate")


@step("boot one with a shared and a dedicated CPU")
def _(scene: Scene) -> None:
    scene.servers.boot("mixed", "mixed", REAL)


@step("delete that, too")
def _(scene: Scene) -> None:
    scene.servers.delete("mixed")


@step("boot one of a NUMA node")
def _(scene: Scene) -> None:
    scene.servers.boot("numa", "numa", REAL)


@step("boot one with huge pages" if _HUGE_PAGES else "ask for huge pages, which there are none of")
def _(scene: Scene) -> None:
    scene.servers.boot("huge-pages", "huge-pages", REAL, until="ACTIVE" if _HUGE_PAGES else "ERROR")


@step("boot one with cache")
def _(scene: Scene) -> None:
    scene.servers.boot("cache", "cache", REAL)


@step("ask for more cache than is left")
def _(scene: Scene) -> None:
    scene.servers.boot("much-cache", "much-cache", REAL, until="ERROR")


@step("shelve the guest")
def _(scene: Scene) -> None:
    scene.servers.act("cache", "shelve", until="SHELVED")


@step("unshelve it")
def _(scene: Scene) -> None:
    scene.servers.act("cache", "unshelve", until="ACTIVE")


@step("start nova-compute again")
def _(scene: Scene) -> None:
    scene.cloud.hosts[REAL].stop()
    scene.cloud.start(REAL)


# Between hosts


@step("boot where a trait is")
def _(scene: Scene) -> None:
    scene.servers.boot("trait", "trait", _FIRST)


@step("boot where a trait is not")
def _(scene: Scene) -> None:
    scene.servers.boot("not-there", "not-there", _FIRST, until="ERROR")


@step("boot one with cache that will move")
def _(scene: Scene) -> None:
    scene.servers.boot("mover", "cache", _FIRST)


@step("migrate it")
def _(scene: Scene) -> None:
    scene.servers.act("mover", "migrate", {"host": _SECOND}, until="VERIFY_RESIZE")


@step("confirm")
def _(scene: Scene) -> None:
    scene.servers.act("mover", "confirmResize", until="ACTIVE")
    wait_for_cloud(lambda: not scene.is_kept_elsewhere(), "nothing is kept at the source")


@step("migrate it again")
def _(scene: Scene) -> None:
    scene.servers.act("mover", "migrate", {"host": _FIRST}, until="VERIFY_RESIZE")


@step("revert")
def _(scene: Scene) -> None:
    scene.servers.act("mover", "revertResize", until="ACTIVE")
    wait_for_cloud(lambda: not scene.is_kept_elsewhere(), "nothing is kept at the destination")


@step("live-migrate it")
def _(scene: Scene) -> None:
    body = {"host": _FIRST, "block_migration": "auto"}
    scene.servers.start_to("mover", "os-migrateLive", body)
    wait_for_cloud(lambda: scene.servers.host("mover") == _FIRST, "it is there")
    scene.servers.wait("mover", "ACTIVE")
    wait_for_cloud(lambda: not scene.is_kept_elsewhere(), "nothing is kept at the source")


@step("migrate to a host that is full")
def _(scene: Scene) -> None:
    scene.servers.flavor("all-cache", resources_CUSTOM_LLC="14")
    scene.servers.boot("all-cache", "all-cache", _SECOND)
    scene.servers.start_to("mover", "migrate", {"host": _SECOND})
    scene.servers.wait("mover", "ACTIVE")


@step("empty it")
def _(scene: Scene) -> None:
    scene.servers.delete("all-cache")


@step("have no new guests come to the host with real ones")
def _(scene: Scene) -> None:
    scene.servers.disable(REAL, True)


@step("resize it to a larger flavor")
def _(scene: Scene) -> None:
    scene.servers.flavor("more-cache", vcpus=2, memory=128, disk=0, resources_CUSTOM_LLC="6")
    scene.servers.resize("mover", "more-cache")


@step("revert that")
def _(scene: Scene) -> None:
    scene.servers.act("mover", "revertResize", until="ACTIVE")
    wait_for_cloud(lambda: not scene.is_kept_elsewhere(), "nothing is kept at the destination")


@step("resize it again")
def _(scene: Scene) -> None:
    scene.servers.resize("mover", "more-cache")


@step("confirm that")
def _(scene: Scene) -> None:
    scene.servers.act("mover", "confirmResize", until="ACTIVE")
    wait_for_cloud(lambda: not scene.is_kept_elsewhere(), "nothing is kept at the source")


@step("resize it to more than any host has")
def _(scene: Scene) -> None:
    scene.servers.flavor("too-much-cache", disk=0, resources_CUSTOM_LLC="15")
    scene.servers.start_to_resize("mover", "too-much-cache")
    scene.servers.wait("mover", "ACTIVE")


@step("have new guests come again")
def _(scene: Scene) -> None:
    scene.servers.disable(REAL, False)


@step("evacuate a host that died")
def _(scene: Scene) -> None:
    scene.cloud.hosts[_FIRST].stop()
    scene.servers.force_down(_FIRST, True)
    scene.servers.start_to("trait", "evacuate", {"host": _SECOND})
    wait_for_cloud(lambda: scene.servers.host("trait") == _SECOND, "it is there")
    scene.servers.wait("trait", "SHUTOFF")


@step("the host comes back")
def _(scene: Scene) -> None:
    scene.cloud.start(_FIRST)
    scene.servers.force_down(_FIRST, False)
    wait_for_cloud(lambda: len(scene.claim("trait")["allocations"]) == 1, "nothing is kept there")


# nova-manage


@step("lose an allocation")
def _(scene: Scene) -> None:
    scene.cloud.placement.send("DELETE", f"/allocations/{scene.servers.uuid('mover')}")


@step("nova-manage placement heal_allocations")
def _(scene: Scene) -> None:
    scene.cloud.manage("placement", "heal_allocations", "--verbose")


@step("write an allocation of nobody")
def _(scene: Scene) -> None:
    placement = scene.cloud.placement
    (provider,) = placement.get(f"/resource_providers?name={_FIRST}")["resource_providers"]
    body = {
        "allocations": {provider["uuid"]: {"resources": {"VCPU": 1}}},
        "project_id": ADMIN.name,
        "user_id": ADMIN.name,
        "consumer_type": "INSTANCE",
        "consumer_generation": None,
    }
    placement.send("PUT", f"/allocations/{_ORPHAN}", body)
    scene.servers.names[_ORPHAN] = "nobody"


@step("nova-manage placement audit")
def _(scene: Scene) -> None:
    said = scene.cloud.manage("placement", "audit", "--verbose", good=(_FOUND,))
    assert _ORPHAN in said, said


@step("nova-manage placement audit --delete")
def _(scene: Scene) -> None:
    scene.cloud.manage("placement", "audit", "--verbose", "--delete", good=(_DELETED,))
    scene.cloud.manage("placement", "audit", good=(0,))


@step("put a host into an aggregate")
def _(scene: Scene) -> None:
    scene.servers.aggregate("fast", _SECOND)


@step("forget that")
def _(scene: Scene) -> None:
    placement = scene.cloud.placement
    (provider,) = placement.get(f"/resource_providers?name={_SECOND}")["resource_providers"]
    path = f"/resource_providers/{provider['uuid']}/aggregates"
    generation = placement.get(path)["resource_provider_generation"]
    placement.send("PUT", path, {"aggregates": [], "resource_provider_generation": generation})


@step("nova-manage placement sync_aggregates")
def _(scene: Scene) -> None:
    scene.cloud.manage("placement", "sync_aggregates", "--verbose")


@step("delete all guests")
def _(scene: Scene) -> None:
    for server in list(scene.cloud.compute.get("/servers?all_tenants=1")["servers"]):
        scene.servers.delete(server["name"])
    scene.cloud.manage("placement", "audit", good=(0,))
