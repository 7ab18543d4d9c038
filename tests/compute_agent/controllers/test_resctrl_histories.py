"""Tests of random histories of guests: the resctrl groups are right after each step."""

import contextlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.model.resource import ThrottleControl
from compute_agent.resctrl.groups import read_groups
from tests.compute_agent.controllers.resctrl_host import CLASS_GROUPS, GuestThreads, ResctrlHost
from tests.compute_agent.resctrl import fake
from tests.examples import examples

MACHINES = {
    "intel": fake.FakeMachine(closids=7, mb_closids=7),
    "amd": fake.AMD,
    "arm": fake.ARM,
    "intel-cdp": fake.INTEL_CDP,
}

UUIDS = st.sampled_from("abcdef")
RESOURCES = st.fixed_dictionaries(
    {}, optional={"LLC": st.integers(1, 6), "MBA": st.sampled_from([10, 30, 50, 100])}
)
ALLOCATIONS = st.dictionaries(st.sampled_from(["l3-0", "l3-1"]), RESOURCES, max_size=2)
LIMITS = st.dictionaries(
    st.sampled_from([ThrottleControl("memory_bandwidth", "1"), ThrottleControl("cache_ways", "1")]),
    st.sampled_from([10.0, 40.0]),
)
ANNOTATIONS = st.sampled_from(["", '{"LLC": {"schemata": {"range": [20, 60]}}}', "nonsense"])
STEPS = st.one_of(
    st.tuples(st.just("start"), UUIDS, ALLOCATIONS, LIMITS, ANNOTATIONS, st.sampled_from(["LS", "BE"])),
    st.tuples(st.just("end"), UUIDS),
    st.tuples(st.just("restart")),
    st.tuples(st.just("killed"), UUIDS, ALLOCATIONS, st.integers(0, 12)),
    st.tuples(st.just("foreign")),
    st.tuples(st.just("stray"), UUIDS),
)


class Killed(BaseException):
    """The end of the agent between two changes of the kernel's state."""


def kill_after(files, changes):
    """Let the agent make at most ``changes`` changes; return the function that makes the tree work again."""
    methods, left = (files.write_file, files.make_folder, files.remove_folder), [changes]

    def counted(method):
        def change(*arguments):
            if not left[0]:
                raise Killed
            left[0] -= 1
            return method(*arguments)

        return change

    files.write_file, files.make_folder, files.remove_folder = map(counted, methods)

    def mend():
        files.write_file, files.make_folder, files.remove_folder = methods

    return mend


@pytest.fixture(scope="module")
def tids():
    threads = GuestThreads(12)
    yield threads.ids
    threads.close()


@pytest.mark.parametrize("name", MACHINES)
@settings(max_examples=examples(15), deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_after_any_history_each_guest_has_what_was_not_refused(name, tids, steps):
    machine = MACHINES[name]
    caches = {f"l3-{number}": cache for number, cache in enumerate(machine.l3)}
    with tempfile.TemporaryDirectory() as folder:
        files = fake.FakeResctrl.of(machine, Path(folder) / "resctrl")
        rig = ResctrlHost(files, machine, tids, caches=caches.values())
        threads = {uuid: tids[2 * n : 2 * n + 2] for n, uuid in enumerate("abcdef")}
        held, limited = {}, {}
        for step in steps:
            match step:
                case "start", uuid, allocation, limits, annotation, qos_class:
                    limits = {
                        ThrottleControl(k.lever, str(machine.l3[1])): limit for k, limit in limits.items()
                    }
                    rig.driver.threads[uuid] = threads[uuid]
                    rig.guest(uuid, allocation, limits=limits, qos_class=qos_class, resctrl=annotation)
                    held[uuid], limited[uuid] = allocation, limits
                case "end", uuid if uuid in held:
                    rig.end(uuid)
                    del held[uuid], limited[uuid]
                case "killed", uuid, allocation, changes:
                    rig.driver.threads[uuid] = threads[uuid]
                    rig.guest(uuid, allocation)
                    held[uuid], limited[uuid] = allocation, {}
                    mend = kill_after(files, changes)
                    with contextlib.suppress(Killed):
                        rig.work()
                    mend()
                    check_exclusive(rig)
                    rig.restart()
                case ("restart",):
                    rig.restart()
                case ("foreign",) if not (rig.files.root / "theirs").exists():
                    if len(rig.groups()) < 6:
                        rig.files.make_folder("theirs")
                case "stray", uuid if uuid in held:
                    rig.files.write_file("tasks", f"{threads[uuid][0]}\n")
            rig.sync()
            for uuid, target in rig.targets.items():
                if not limited[uuid]:
                    rig.controller.apply(target)
            check(rig, machine, caches, held, limited)


def check_exclusive(rig):
    """Check that the exclusive ways of two groups never overlap, whenever the agent ends."""
    present = read_groups(rig.files)
    guests = [name for name in present.groups if name.startswith("compute-agent.guest.")]
    for cache in rig.platform.l3.ids:
        default = rig.mask("", cache)
        own = [mask for name in guests if not (mask := rig.mask(name, cache)) & default]
        assert sum(len(mask) for mask in own) == len(frozenset().union(*map(frozenset, own)))


def check(rig, machine, caches, held, limited):
    present = read_groups(rig.files)
    foreign = {"theirs"} & set(present.groups)
    wanted = {rig.group(uuid) for uuid in held}
    assert rig.groups() == CLASS_GROUPS | foreign | (wanted - {""})
    for uuid, allocation in held.items():
        if not limited[uuid]:
            assert rig.inside(uuid)
        for zone, resources in allocation.items():
            ways = resources.get("LLC", 0)
            if not ways or uuid in rig.controller.refused:
                continue
            mask = rig.mask(rig.group(uuid), caches[zone])
            if not limited[uuid]:
                assert len(mask) == ways
            for other in present.groups:
                if other not in (rig.group(uuid), *foreign):
                    assert not rig.mask(other, caches[zone]) & mask
    before = (rig.controller.refused, rig.controller.membership)
    rig.files.write_file, write = None, rig.files.write_file
    rig.controller._synced = None
    rig.sync()
    rig.files.write_file = write
    assert (rig.controller.refused, rig.controller.membership) == before
