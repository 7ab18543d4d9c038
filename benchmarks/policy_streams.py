"""Streams of guests that come to one host and leave it again, the same for everybody who places them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.model.guest_settings import ThreadPolicy

LOWEST_LOAD, MAX_LOAD = 0.75, 1.0
"""Of the dedicated CPUs, by what guests ask for. They hold less where some are refused."""

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
    """A guest comes."""

    guest: StreamGuest


@dataclass(frozen=True, slots=True)
class GuestDeparture:
    """A guest leaves, if it was accepted."""

    name: str


def threads_per_core(topology: HostTopology) -> int:
    """How many threads a core has."""
    return max(len(core.cpus) for core in topology.cores)


def claimed_cpus(topology: HostTopology, guest: StreamGuest) -> int:
    """The CPUs that a guest takes away from others: with thread policy isolate whole cores."""
    isolated = guest.thread_policy is ThreadPolicy.ISOLATE
    return guest.vcpus * (threads_per_core(topology) if isolated else 1)


def make_stream(topology: HostTopology, arrivals: int, seed: int) -> Iterator[GuestArrival | GuestDeparture]:
    """So many arrivals, and departures of random guests between them as the load wants it.

    Guests take 1 CPU to half of the smallest NUMA node. Half of them are of thread policy prefer, a quarter
    each require and isolate; where there are no siblings nobody requires them.
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
    """A saw that goes up and down between the lowest and the highest load."""
    place = number % PERIOD / PERIOD
    return LOWEST_LOAD + (MAX_LOAD - LOWEST_LOAD) * (1 - abs(2 * place - 1))
