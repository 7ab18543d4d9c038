"""Tests with random histories of guests, devices, other programs, kills and CPUs, checked after each round of
the agent.

The checking code knows the content that each mask would have without the agent. After each round, no movable
work uses a quiet CPU, and the agent has moved no work to a CPU that a guest holds. CPUs of guests with the
level ``alone`` are partitions if the kernel has partitions. At the end, each mask has its content without the
agent, and no partition is left.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.facts import DEFAULT_MASK, WATCHDOG_MASK, WORKQUEUE_MASK
from compute_agent.model import cpuset
from tests.compute_agent.isolation.fake_kernel import IsolationHost, Killed

MEMORY = Path("/dev/shm")
CPUS = frozenset(range(8))
NODES = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
NUMBERS = st.integers(30, 35)
SLICE = "sys/fs/cgroup/system.slice/cpuset.cpus"
GUESTS = "sys/fs/cgroup/guests"
SETS = st.frozensets(st.integers(0, 7), min_size=1)

EVENTS = st.one_of(
    st.tuples(st.just("guest"), st.sampled_from("abc"), st.frozensets(st.sampled_from([2, 3, 5, 6, 7]))),
    st.tuples(st.just("level"), st.sampled_from("abc"), st.sampled_from(["", "quiet", "alone"])),
    st.tuples(st.just("add"), NUMBERS, st.one_of(st.none(), SETS), st.booleans()),
    st.tuples(st.just("remove"), NUMBERS),
    st.tuples(st.just("reset"), NUMBERS),
    st.tuples(st.just("thread"), st.sampled_from([200, 201]), SETS),
    st.tuples(
        st.just("foreign"),
        st.one_of(NUMBERS, st.sampled_from([WORKQUEUE_MASK, WATCHDOG_MASK, "proc/200/status", SLICE])),
        SETS,
    ),
    st.tuples(st.just("slice")),
    st.tuples(st.just("offline"), st.sampled_from([1, 4])),
    st.tuples(st.just("online")),
    st.tuples(st.just("kill"), st.integers(0, 12)),
    st.tuples(st.just("look")),
)


class IsolationWorld:
    """A host with guests, and the possible contents that each mask would have without the agent.

    Guest ``a`` has the level ``alone`` at first.
    """

    def __init__(self, folder, version, dedicated):
        self.dedicated = dedicated
        self.host = IsolationHost(folder, version=version)
        self.kernel = self.host.kernel
        self.guests, self.levels, self.serial = {"a": frozenset({2, 3})}, {"a": "alone"}, 0
        for group in ("system.slice", "user.slice", "guests", *(f"guests/guest-{name}" for name in "abc")):
            self.kernel.cgroups.add(group)
        self.natural = {path: {cpus} for path, cpus in self.kernel.masks().items()}

    def irqs(self):
        return {path for path in self.kernel.masks() if path.endswith("affinity_list")}

    def demand(self):
        held = []
        for name, cpus in self.guests.items():
            level, group = self.levels.get(name, ""), f"guests/guest-{name}"
            held.append(HeldCpus(name, cpus, bool(level and cpus), 0, level == "alone", group, (cpus,)))
        return IsolationDemand(tuple(held), self.dedicated, NODES)

    def play(self, event):
        match event:
            case ("guest", name, cpus):
                others = frozenset().union(*(each for one, each in self.guests.items() if one != name))
                self.guests[name] = cpus - others
            case ("level", name, level):
                self.levels[name] = level
            case ("add", number, cpus, managed):
                path = self.kernel.irq(number)
                if path not in self.natural:
                    self.serial += 1
                    # The kernel spreads managed interrupts by itself.
                    cpus = CPUS if managed and cpus is None else cpus
                    self.kernel.add_interrupt(number, f"dev{self.serial}", cpus, managed=managed)
                    default = self.host.kept().masks.get(DEFAULT_MASK)
                    shadows = () if default is None else default.written
                    self.natural[path] = {cpus} if cpus else set()
                    # A mask that is the default of the agent does not tell its writer.
                    if not cpus or cpus in shadows:
                        self.natural[path] |= self.natural[DEFAULT_MASK]
                    self.break_affinity(path)
            case ("remove", number):
                if self.natural.pop(self.kernel.irq(number), None) is not None:
                    self.kernel.remove_interrupt(number)
            case ("reset", number):
                path = self.kernel.irq(number)
                if path in self.natural and path not in self.kernel.managed:
                    self.kernel.reset_interrupt(number)
                    self.natural[path] |= self.natural[DEFAULT_MASK]
                    self.break_affinity(path)
            case ("thread", number, cpus):
                path = f"proc/{number}/status"
                if self.natural.pop(path, None) is not None:
                    self.kernel.remove_thread(number)
                elif cpus & self.kernel.online:
                    self.serial += 1
                    self.kernel.add_thread(number, f"k{self.serial}", cpus)
                    self.natural[path] = {cpus}
                    # A thread that is unknown when a partition goes has what the kernel gives it then.
                    self.look()
            case ("slice",):
                self.serial += 1
                self.kernel.cgroups.add(f"custom{self.serial}.slice")
                self.natural[f"sys/fs/cgroup/custom{self.serial}.slice/cpuset.cpus"] = {frozenset()}
            case ("foreign", mask, cpus):
                path = mask if isinstance(mask, str) else self.kernel.irq(mask)
                known = self.host.kept().masks.get(path)
                written = () if known is None else known.written
                default = self.host.kept().masks.get(DEFAULT_MASK)
                shadows = () if default is None else default.written
                movable = path in self.natural and path not in self.kernel.managed
                # The kernel itself gives large sets to its threads when partitions change.
                movable = movable and (not path.endswith("/status") or len(cpus) < 3)
                # A value that the agent itself has written shows no other writer.
                if movable and cpus & self.kernel.online and cpus not in (*written, *shadows):
                    self.kernel.change(path, cpus)
                    # A group with all CPUs has no mask.
                    self.natural[path] = {frozenset() if path == SLICE and cpus == CPUS else cpus}
            case ("offline", cpu):
                self.look()
                self.kernel.set_online(self.kernel.online - {cpu})
                for path in self.irqs():
                    self.break_affinity(path)
                for path in self.natural:
                    online = self.kernel.online
                    if path.endswith("/status") and any(not each & online for each in self.natural[path]):
                        self.natural[path].add(CPUS)
                self.look()
            case ("online",):
                self.look()
                self.kernel.set_online(CPUS)
                self.look()
            case ("kill", after):
                self.kernel.kill_at = len(self.kernel.writes) + after
                try:
                    self.host.bring_about(self.demand())
                except Killed:
                    self.host.start()
                self.kernel.kill_at = None
            case ("look",):
                self.look()

    def break_affinity(self, path):
        """Give an interrupt all online CPUs, as the kernel does when its last CPU goes offline."""
        online = self.kernel.online
        self.natural[path] |= {online for cpus in self.natural[path] if not cpus & online}

    def look(self):
        demand = self.demand()
        before = self.kernel.masks()
        self.host.bring_about(demand)
        # The pins come after masks, and no partition prevents them.
        for guest in demand.guests:
            path = f"sys/fs/cgroup/{guest.group}"
            shown = self.kernel.text(f"{path}/cpuset.cpus.partition")
            assert shown == "member" or self.kernel.text(f"{path}/cpuset.cpus") == cpuset.format(guest.cpus)
            self.kernel.change(f"{path}/cpuset.cpus", guest.cpus)
        status = self.host.bring_about(demand)
        self.judge_partitions(demand)
        stuck = {one.mask.path for one in status.stuck}
        for path, cpus in self.kernel.masks().items():
            if path in self.kernel.managed:
                assert cpus == before[path]
                continue
            if path.startswith(GUESTS):
                continue
            cpus = cpus or (self.kernel.online if path.endswith("cpuset.cpus") else cpus)
            assert path in stuck or not cpus & demand.quiet_cpus, (path, cpus)
            # Work comes to a CPU that a guest holds only if the original mask has this CPU.
            natural = {each or self.kernel.online for each in self.natural[path]}
            allowed = frozenset().union(*natural)
            assert cpus & demand.held_cpus <= allowed | (cpus & before[path]), (path, cpus)
            if not any(each & demand.quiet_cpus for each in natural):
                assert cpus in natural, (path, cpus, natural)
        assert stuck <= self.kernel.managed
        writes = len(self.kernel.writes)
        self.host.bring_about(demand)
        assert len(self.kernel.writes) == writes

    def judge_partitions(self, demand):
        alone = frozenset().union(*(guest.cpus for guest in demand.guests if guest.alone))
        # Linux 6.1 has none below a group that is none itself.
        assert self.kernel.cgroups.partitioned == (alone if self.kernel.version >= (6, 7) else frozenset())
        assert self.host.isolator.status.alone == self.kernel.cgroups.partitioned

    def end(self):
        self.kernel.set_online(CPUS)
        self.guests.clear()
        self.look()
        for path, cpus in self.kernel.masks().items():
            if not path.startswith(GUESTS):
                assert cpus in self.natural[path], (path, cpus, self.natural[path])
        for group in self.kernel.cgroups.groups():
            assert self.kernel.cgroups.state(group) == "member"
            assert self.kernel.cgroups.text(group, "cpuset.cpus.exclusive") == ""
        assert self.kernel.masks()[f"{GUESTS}/cpuset.cpus"] == frozenset()
        assert (self.host.kept().masks, self.host.kept().groups) == ({}, {})


@given(
    st.lists(EVENTS, max_size=25),
    st.sampled_from([(6, 1), (6, 8), (6, 12)]),
    st.sampled_from([frozenset({2, 3, 5, 6, 7}), CPUS]),
)
# The mask of the interrupt becomes equal to the agent's default mask after the agent has seen the interrupt.
@example(
    [("guest", "a", frozenset({2})), ("offline", 4), ("add", 30, frozenset({0}), False), ("offline", 1)],
    (6, 1),
    frozenset({2, 3, 5, 6, 7}),
)
# The kernel does not let the agent move an interrupt that has the agent's default mask.
@example(
    [
        ("guest", "a", frozenset({2})),
        ("offline", 1),
        ("offline", 4),
        ("add", 30, frozenset({0}), True),
    ],
    (6, 1),
    frozenset({2, 3, 5, 6, 7}),
)
# The agent is killed between the removal of a partition and the writes of the threads' masks.
@example(
    [
        ("guest", "a", frozenset({2})),
        ("online",),
        ("thread", 200, frozenset({0})),
        ("guest", "a", frozenset()),
        ("kill", 3),
    ],
    (6, 8),
    frozenset({2, 3, 5, 6, 7}),
)
@settings(max_examples=100, deadline=None)
def test_no_history_leaves_work_on_quiet_cpus_or_a_mask_not_given_back(events, version, dedicated):
    # In memory, as each look of the agent syncs its file.
    folder = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    try:
        world = IsolationWorld(folder, version, dedicated)
        for event in events:
            world.play(event)
        world.end()
    finally:
        shutil.rmtree(folder)
