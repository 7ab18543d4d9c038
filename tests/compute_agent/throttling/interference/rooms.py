"""A simulation of a few guests on the same CPUs. If they want more CPU time than there is, all of them
wait.
"""

import random

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.interference.decisions import advance_state
from compute_agent.throttling.interference.signals import (
    SIGNALS,
    GuestReading,
    GuestSamples,
    InterferenceWatch,
)
from compute_agent.throttling.interference.state import InterferenceState
from compute_agent.throttling.levers import ThrottleSteps
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage

QUOTA = ThrottleControl("cpu_quota")
CPUS = frozenset(range(4))
RANKS = {"BE": 0, "LS": 10}


def facts(uuid, qos_class="BE", *, protected=False, vcpus=4.0):
    return GuestUsage(
        uuid, qos_class, RANKS[qos_class], protected=protected, allotments={QUOTA: GuestAllotment(vcpus)}
    )


def watch(**options):
    return InterferenceWatch(**{"name": "cpu", "signal": SIGNALS["run_delay"], "preview": False} | options)


class Room:
    """A server that wants one core, a batch job that wants half a core, and further guests."""

    def __init__(self, *watches, seed=1):
        self.watches = watches or (watch(),)
        self.rng = random.Random(seed)
        self.guests = {"server": facts("server", "LS"), "job": facts("job")}
        self.wants = {"server": 1.0, "job": 0.5}
        self.foreign = {}
        """Limits of another source."""
        self.delays = {}
        """The part of the time that guests wait whatever others do."""
        self.state, self.samples, self.time, self.decisions = InterferenceState(), (), 0.0, []

    def put(self, uuid, cores, **options):
        self.guests[uuid] = facts(uuid, **options)
        self.wants[uuid] = cores

    def remove(self, uuid):
        del self.guests[uuid], self.wants[uuid]

    @property
    def limits(self):
        return {guest: of_guest[QUOTA] for guest, of_guest in self.state.guest_limits().items()}

    def round(self):
        self.time += 10
        sample = self._sample()
        self.samples = (*self.samples[-59:], sample)
        self.state, decisions = advance_state(self.watches, ThrottleSteps(), self.state, self.samples)
        self.decisions += [(self.time, one) for one in decisions]

    def rounds(self, count, until=None):
        """Run a number of rounds, or run until a condition holds; return the number of rounds."""
        for number in range(count):
            if until is not None and until():
                return number
            self.round()
        assert until is None, [one for _, one in self.decisions]
        return count

    @property
    def told(self):
        return [one.what.value for _, one in self.decisions]

    def _sample(self):
        low = {**self.foreign, **self.limits}
        wanted = {guest: max(0.0, cores * self.rng.gauss(1, 0.05)) for guest, cores in self.wants.items()}
        demand = {guest: min(cores, low.get(guest, cores)) for guest, cores in wanted.items()}
        load = sum(demand.values()) / len(CPUS)
        share = min(0.8, 0.02 + max(0.0, load - 0.7))
        readings = {
            guest: GuestReading(
                one,
                CPUS,
                guest in low,
                demand[guest] * (1 - part),
                demand[guest] * part * self.rng.gauss(1, 0.1),
            )
            for guest, one in self.guests.items()
            for part in [self.delays.get(guest, share)]
        }
        return GuestSamples(self.time, readings)
