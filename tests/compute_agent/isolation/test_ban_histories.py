"""Tests with random histories of guests, scans and restarts of irqbalance, other commands, and kills of the
agent.

After each scan, irqbalance avoids the quiet CPUs and the CPUs that its environment bans. At the end, it
avoids only the latter, and the agent has stored no ban.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.irqbalance import BalancerError, BalancerSockets, SeenBan
from tests.compute_agent.isolation.fake_kernel import IsolationHost, Killed

MEMORY = Path("/dev/shm")
CPUS = st.frozensets(st.integers(2, 7), max_size=3)
EVENTS = st.one_of(
    st.tuples(st.just("guest"), CPUS),
    st.tuples(st.just("look")),
    st.tuples(st.just("scan")),
    st.tuples(st.just("restart"), st.frozensets(st.integers(0, 3), max_size=2)),
    st.tuples(st.just("foreign"), CPUS),
    st.tuples(st.just("silent"), st.booleans()),
    st.tuples(st.just("kill"), st.integers(0, 6)),
    st.tuples(st.just("agent")),
)


class FakeBans(BalancerSockets):
    """An irqbalance in memory. If it is silent, it executes a command but sends no answer."""

    def __init__(self, kernel):
        super().__init__(kernel.root)
        self.kernel, self.number, self.is_silent = kernel, 0, False
        self.restart(frozenset())

    @property
    def key(self):
        return f"irqbalance{self.number}.sock@1"

    def restart(self, environment):
        self.number += 1
        self.environment, self.banned, self.wanted = environment, environment, None
        self.foreign = frozenset()
        self.forget()

    def forget(self):
        """Forget the writes, as if another agent process had made them."""
        self.sent, self.is_pending = None, False

    def scan(self):
        self.banned = self.environment if self.wanted is None else self.wanted
        self.is_pending = False

    def read_bans(self):
        if self.is_silent:
            return {}, {self.key: "silent"}
        return {self.key: SeenBan(self.banned, self.sent, self.is_pending)}, {}

    def write_ban(self, key, cpus):
        self.kernel.note_write(key, str(cpus))
        assert key == self.key
        self.wanted = cpus or None
        if self.is_silent:
            raise BalancerError("silent")
        self.sent, self.is_pending = cpus, True


class BannedWorld:
    """A host with one guest and one irqbalance."""

    def __init__(self, folder):
        self.host = IsolationHost(folder)
        self.bans = self.host.kernel.balancers = FakeBans(self.host.kernel)
        self.host.start()
        self.quiet = frozenset()

    def demand(self):
        return IsolationDemand((HeldCpus("a", self.quiet, bool(self.quiet)),), frozenset(range(2, 8)))

    def play(self, event):
        match event:
            case ("guest", cpus):
                self.quiet = cpus
            case ("look",):
                self.look()
            case ("scan",):
                self.bans.scan()
            case ("restart", environment):
                self.bans.restart(environment)
            case ("foreign", cpus):
                # Of irqbalance-ui. Without a ban of the agent it is what irqbalance has for itself.
                self.look()
                if self.quiet and any(ban.written for ban in self.host.kept().bans.values()):
                    self.bans.wanted, self.bans.foreign = cpus or None, cpus
            case ("silent", is_silent):
                self.bans.is_silent = is_silent
            case ("kill", after):
                self.host.kernel.kill_at = len(self.host.kernel.writes) + after
                try:
                    self.host.bring_about(self.demand())
                except Killed:
                    self.start_agent()
                self.host.kernel.kill_at = None
            case ("agent",):
                self.start_agent()

    def start_agent(self):
        self.host.start()
        self.bans.forget()

    def look(self):
        self.host.bring_about(self.demand())

    def judge(self):
        self.bans.is_silent = False
        for _ in range(3):
            self.look()
            self.bans.scan()
        wanted = self.bans.environment | self.quiet
        assert wanted <= self.bans.banned
        # irqbalance itself bans hot CPUs, and nothing distinguishes these bans from other bans.
        assert self.bans.banned <= wanted | (self.bans.foreign if self.quiet else frozenset())
        writes = len(self.host.kernel.writes)
        self.look()
        assert len(self.host.kernel.writes) == writes


LEFT = [("guest", frozenset({2})), ("look",), ("scan",), ("guest", frozenset()), ("look",)]
"""A guest that has left, before irqbalance has scanned."""


@given(st.lists(EVENTS, max_size=20))
@example([*LEFT, ("guest", frozenset({3})), ("look",)])
@example([*LEFT, ("agent",), ("look",), ("guest", frozenset({3})), ("look",)])
@example([*LEFT, ("silent", True), ("guest", frozenset({3})), ("look",)])
@settings(max_examples=150, deadline=None)
def test_no_history_leaves_a_quiet_cpu_to_irqbalance_or_a_ban_not_given_back(events):
    folder = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    try:
        world = BannedWorld(folder)
        for event in events:
            world.play(event)
        world.judge()
        world.quiet = frozenset()
        world.judge()
        assert world.host.kept().bans == {}
    finally:
        shutil.rmtree(folder)
