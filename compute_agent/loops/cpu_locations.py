"""Where the guests' CPUs really are, as the kernel shows it, in the terms of a reshape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import EmulatorPolicy, GuestSettings, ThreadPolicy
from compute_agent.model.messages import GuestGoneError
from compute_agent.pipeline.view import GuestView
from compute_agent.pipeline.world import HostState
from compute_agent.report.capacity import CpuLocation


def locate(driver: GuestDriver, world: HostState) -> dict[str, CpuLocation]:
    """Where the guests that run are, by consumer.

    :raises DriverError: as long as that cannot be learnt.
    """
    settings: dict[str, GuestSettings] = {}
    affinities: dict[str, frozenset[CpuSet]] = {}
    for guest in driver.guests():
        try:
            threads = driver.thread_ids(guest)
        except GuestGoneError:
            continue
        found = frozenset(cpus for tid in threads if (cpus := procfs.affinity(tid)) is not None)
        if found:
            settings[guest.uuid], affinities[guest.uuid] = guest.settings, found
    return from_affinities(settings, affinities, world)


def by_consumer(locations: Mapping[str, CpuLocation], views: Iterable[GuestView]) -> dict[str, CpuLocation]:
    """The locations by who holds them: of a guest that migrates it is its migration.

    What such a guest holds here by itself, as one that is resized on its host does, is used nowhere yet.
    """
    through = {view.guest.uuid: view.migration.consumer for view in views if view.migration is not None}
    return {through.get(uuid, uuid): location for uuid, location in locations.items()}


def from_affinities(
    settings: Mapping[str, GuestSettings], affinities: Mapping[str, frozenset[CpuSet]], world: HostState
) -> dict[str, CpuLocation]:
    """The locations of guests from the CPU sets that their threads have (a set of sets for each guest).

    CPUs of its own are those of threads that run within the dedicated set only, if no other guest has such
    threads there. Threads that may also run elsewhere, such as those of the emulator, float.
    """
    dedicated = world.cpu_sets.dedicated
    bound = {
        uuid: frozenset[int]().union(*(cpus for cpus in sets if cpus <= dedicated))
        for uuid, sets in affinities.items()
    }
    # With the legacy vcpu_pin_set alone the sets are the same, and nothing tells pinned from floating.
    ambiguous = bool(dedicated & world.cpu_sets.shared)
    found: dict[str, CpuLocation] = {}
    for uuid, sets in affinities.items():
        observed = frozenset[int]().union(*sets)
        used = bound[uuid]
        # Thread policy isolate keeps the dedicated CPUs beside those in use empty.
        isolated = settings[uuid].thread_policy is ThreadPolicy.ISOLATE
        own = used | (world.topology.siblings_of(used) & dedicated if isolated else frozenset())
        others = frozenset[int]().union(*(cpus for other, cpus in bound.items() if other != uuid))
        if not used or own & others:
            found[uuid] = CpuLocation(floating=observed)
            continue
        vcpus = settings[uuid].vcpus
        extra = settings[uuid].emulator_policy is EmulatorPolicy.ISOLATE
        pinned = len(used) == vcpus + extra and not ambiguous
        found[uuid] = CpuLocation(own, observed - own, vcpus if pinned else 0)
    return found
