"""Streams of guests that start and end on one host, the same for each side."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.model.guest_settings import ThreadPolicy

LOWEST_LOAD, MAX_LOAD = 0.75, 1.0
"""Requested shares of the dedicated CPUs. Guests hold less if some are refused."""

PERIOD = 200
"""Arrivals in which the load goes from the lowest to the highest and back."""


@dataclass(frozen=True, slots=True)
class StreamGuest:
    """A guest of one NUMA node with dedicated CPUs."""

    name: str
    vcpus: int
    thread_policy: ThreadPolicy


@dataclass(frozen=True, slots=True)
class GuestArrival:
    """The start of a guest."""

    guest: StreamGuest


@dataclass(frozen=True, slots=True)
class GuestDeparture:
    """The end of a guest, if it was accepted."""

    name: str


def threads_per_core(topology: HostTopology) -> int:
    """Return the number of threads of a core."""
    return max(len(core.cpus) for core in topology.cores)


def claimed_cpus(topology: HostTopology, guest: StreamGuest) -> int:
    """Return the CPUs that a guest takes away from others: whole cores with thread policy isolate."""
    isolated = guest.thread_policy is ThreadPolicy.ISOLATE
    return guest.vcpus * (threads_per_core(topology) if isolated else 1)


def make_stream(topology: HostTopology, arrivals: int, seed: int) -> Iterator[GuestArrival | GuestDeparture]:
    """Yield a number of arrivals, and departures of random guests in between according to the load.

    Guests take 1 CPU to half of the smallest NUMA node. Half of them have thread policy prefer, a quarter
    each require and isolate. Without siblings no guest has thread policy require.
    """
    chance = random.Random(seed)
    threads = threads_per_core(topology)
    half = min(len(node.cpus) for node in topology.numa_nodes if node.cpus) // 2
    policies = [ThreadPolicy.PREFER] * 2 + [ThreadPolicy.ISOLATE]
    policies += [ThreadPolicy.REQUIRE if threads > 1 else ThreadPolicy.PREFER]
    here: dict[str, int] = {}
    for number in range(arrivals):
        policy = chance.choice(policies)
        largest = max(1, half // threads) if policy is ThreadPolicy.ISOLATE else half
        guest = StreamGuest(f"guest-{number}", chance.randint(1, largest), policy)
        here[guest.name] = claimed_cpus(topology, guest)
        while sum(here.values()) > _load_of(number) * len(topology.online):
            leaving = chance.choice([name for name in here if name != guest.name])
            del here[leaving]
            yield GuestDeparture(leaving)
        yield GuestArrival(guest)


def _load_of(number: int) -> float:
    """Return a load that rises and falls linearly between the lowest and the highest load."""
    place = number % PERIOD / PERIOD
    return LOWEST_LOAD + (MAX_LOAD - LOWEST_LOAD) * (1 - abs(2 * place - 1))
