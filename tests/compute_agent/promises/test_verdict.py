"""Tests of verdicts: only the kernel's state decides whether a promise is kept, limited, broken or
unknown.
"""

import os
from dataclasses import replace

import pytest

from compute_agent.isolation.facts import KernelMask, MaskKind
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.promises.verdict import (
    CachePromise,
    GroupFacts,
    GuestPromises,
    HostFacts,
    HostTask,
    ObservedGuest,
    PromiseKind,
    PromiseState,
    broken_text,
    count_broken,
    judge_promises,
)
from compute_agent.schedules.realtime import ThreadSchedule, realtime_schedule
from tests.compute_agent.inventory.machines import machine

KEPT, LIMITED, BROKEN, UNKNOWN = PromiseState
ALL = frozenset(range(8))


def cpus(*numbers):
    return frozenset(numbers)


def interrupt(number, *on, movable=True, effective=(), names="eth0"):
    path = f"proc/irq/{number}/smp_affinity_list"
    return KernelMask(path, MaskKind.INTERRUPT, cpus(*on), "", names, None, cpus(*effective), movable)


PINNED = GuestPromises("a", "web", (cpus(2), cpus(3)), cpus(0, 1), cpus(2, 3))
IN_PLACE = ObservedGuest({0: cpus(2), 1: cpus(3)}, cpus(0, 1), {10: cpus(0, 1), 11: cpus(2), 12: cpus(3)})


@pytest.fixture
def host(two_threads):
    return HostFacts(two_threads, {"a": IN_PLACE})


@pytest.fixture(scope="module")
def two_threads():
    """A topology with two threads a core: cores 0-1, 2-3, 4-5 and 6-7."""
    return machine(nodes=2, cores=2, threads=2)


def verdicts(promise, facts):
    return {one.kind: (one.state, one.found) for one in judge_promises([promise], facts)}


def with_guest(host, **changes):
    return replace(host, guests={**host.guests, "a": replace(host.guests["a"], **changes)})


def test_a_guest_in_its_place_has_its_cpus(host):
    [verdict] = judge_promises([PINNED], host)
    assert (verdict.kind, verdict.state, verdict.promised) == (PromiseKind.CPUS, KEPT, "dedicated CPUs 2-3")
    assert verdict.found == ""


def test_a_guest_without_a_place_has_no_promise_of_cpus(host):
    assert verdicts(GuestPromises("a", "web"), host) == {}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"vcpus": {0: cpus(2), 1: ALL}}, "guest CPU 1 may use 0-7 in place of 3"),
        ({"emulator": cpus(2)}, "emulator threads may use 2 in place of 0-1"),
        ({"threads": {}}, "it has no threads"),
        ({"helpers": {30: cpus(1), 31: ALL}}, "1 helper thread elsewhere, such as 31 on CPUs 0-7"),
        (
            {"vcpus": {}, "emulator": cpus(), "threads": {10: cpus(2), 12: cpus(5)}},
            "1 thread elsewhere, such as 12 on CPUs 5",
        ),
    ],
)
def test_threads_elsewhere_break_the_promise_of_cpus(host, changes, found):
    assert verdicts(PINNED, with_guest(host, **changes)) == {PromiseKind.CPUS: (BROKEN, found)}


def test_threads_that_another_program_leaves_on_dedicated_cpus_limit_the_promise(host):
    """Nova leaves such threads there on a host without cpu_shared_set."""
    given = replace(PINNED, emulator_cpus=cpus(2, 3), given=True)
    found = "threads that run no guest CPU may use CPUs 2-3"
    facts = with_guest(host, emulator=cpus(2, 3))
    assert verdicts(given, facts) == {PromiseKind.CPUS: (LIMITED, found)}
    given = replace(PINNED, given=True)
    assert verdicts(given, host) == {PromiseKind.CPUS: (KEPT, "")}
    facts = with_guest(host, helpers={30: ALL})
    assert verdicts(given, facts) == {PromiseKind.CPUS: (LIMITED, found)}
    # Its own dedicated CPU.
    alone = replace(PINNED, emulator_cpus=cpus(4), held=cpus(2, 3, 4), given=True)
    facts = with_guest(host, emulator=cpus(4), threads={10: cpus(4), 11: cpus(2), 12: cpus(3)})
    assert verdicts(alone, facts) == {PromiseKind.CPUS: (KEPT, "")}


def test_a_helper_of_another_guest_on_dedicated_cpus_breaks_the_promise(host):
    other = ObservedGuest(threads={20: cpus(4)}, helpers={30: cpus(2, 4)})
    facts = replace(host, guests={**host.guests, "b": other})
    assert verdicts(PINNED, facts) == {PromiseKind.CPUS: (BROKEN, "guest b may run on CPUs 2")}


def test_another_guest_on_dedicated_cpus_breaks_the_promise(host):
    facts = replace(host, guests={**host.guests, "b": ObservedGuest(threads={20: cpus(3, 4)})})
    assert verdicts(PINNED, facts) == {PromiseKind.CPUS: (BROKEN, "guest b may run on CPUs 3")}
    floating = GuestPromises("a", "web", (cpus(2, 3),), cpus(2, 3))
    facts = with_guest(facts, vcpus={0: cpus(2, 3)}, emulator=cpus(2, 3))
    assert verdicts(floating, facts) == {PromiseKind.CPUS: (KEPT, "")}


def test_an_offline_cpu_breaks_the_promise(host):
    facts = with_guest(host, vcpus={0: cpus(2), 1: cpus(2)})
    facts = replace(facts, topology=replace(host.topology, online=ALL - {3}))
    assert verdicts(PINNED, facts) == {PromiseKind.CPUS: (BROKEN, "CPU 3 of guest CPU 1 is offline")}


@pytest.mark.parametrize("policy", [ThreadPolicy.ISOLATE, ThreadPolicy.REQUIRE])
def test_siblings_are_a_promise_of_thread_policies_that_name_them(host, policy):
    alone = replace(
        PINNED, vcpu_cpus=(cpus(2),), held=cpus(2, 3) if policy is ThreadPolicy.ISOLATE else cpus(2)
    )
    facts = with_guest(host, vcpus={0: cpus(2)}, threads={11: cpus(2)})
    assert PromiseKind.SIBLINGS not in verdicts(alone, facts)
    alone = replace(alone, thread_policy=policy)
    assert verdicts(alone, facts)[PromiseKind.SIBLINGS] == (KEPT, "")
    facts = replace(facts, guests={**facts.guests, "b": ObservedGuest(threads={20: cpus(3)})})
    assert verdicts(alone, facts)[PromiseKind.SIBLINGS] == (BROKEN, "guest b may run on CPUs 3")


def test_memory_is_where_it_is_bound_and_where_its_pages_are(host):
    bound = replace(PINNED, mems=cpus(1))
    anywhere = with_guest(host, bound=cpus())
    assert verdicts(replace(PINNED, mems=cpus(0, 1)), anywhere)[PromiseKind.MEMORY] == (KEPT, "")
    for changes, state, found in (
        ({}, UNKNOWN, "its memory cannot be bound, and its pages are not counted"),
        ({"bound": cpus(1)}, KEPT, ""),
        ({"memory": {0: 1 << 20, 1: 100 << 20}}, KEPT, ""),
        (
            {"memory": {0: 64 << 20, 1: 192 << 20}},
            BROKEN,
            "of 256 MiB it has 64 MiB on node 0",
        ),
        ({"bound": cpus(0, 1)}, BROKEN, "it is bound to NUMA nodes 0-1"),
        ({"bound": cpus()}, BROKEN, "it is bound to NUMA nodes any"),
    ):
        assert verdicts(bound, with_guest(host, **changes))[PromiseKind.MEMORY] == (state, found)


@pytest.mark.parametrize(
    ("group", "limit", "state", "found"),
    [
        (GroupFacts({0: (4, 0)}), None, KEPT, ""),
        (GroupFacts({0: (6, 2)}), None, KEPT, ""),
        (GroupFacts({0: (4, 1)}), None, BROKEN, "another group can fill 1 of its 4 ways of L3 0"),
        (GroupFacts({0: (2, 0)}), None, BROKEN, "2 ways of L3 0"),
        (GroupFacts({0: (2, 0)}), 2, LIMITED, "throttled to 2 ways of L3 0"),
        (GroupFacts({0: (1, 0)}), 2, BROKEN, "1 ways of L3 0; throttled to 2 ways of L3 0"),
        (
            GroupFacts({0: (4, 0)}, outside=cpus(11)),
            None,
            BROKEN,
            "1 thread outside of its resctrl group, such as 11",
        ),
        (None, None, BROKEN, "its resctrl group g cannot be read"),
    ],
)
def test_ways_are_its_own(host, group, limit, state, found):
    cached = replace(PINNED, group="g", caches={0: CachePromise(4, way_limit=limit)})
    assert verdicts(cached, with_guest(host, group=group))[PromiseKind.CACHE] == (state, found)


def test_bandwidth_is_at_least_what_is_held_but_for_rounding_and_throttling(host):
    for has, slack, limit, state in (
        (20, 0, None, KEPT),
        (100, 0, None, KEPT),
        (19, 0, None, BROKEN),
        (19, 1, None, KEPT),
        (10, 0, 10, LIMITED),
    ):
        cached = replace(PINNED, group="g", caches={0: CachePromise(0, 20, bandwidth_limit=limit)})
        facts = with_guest(host, group=GroupFacts({0: (8, 8)}, {0: has}, slack))
        found = verdicts(cached, facts)
        assert found[PromiseKind.BANDWIDTH][0] is state
        assert found[PromiseKind.CACHE][0] is KEPT


QUIET = replace(PINNED, quiet=True)


@pytest.mark.parametrize(
    ("mask", "state", "found"),
    [
        (interrupt(30, 0, 1), KEPT, ""),
        (interrupt(30, 0, 2), BROKEN, "interrupt 30 (eth0) may run there"),
        (interrupt(30, 0, 2, movable=False), LIMITED, "the kernel keeps interrupt 30 (eth0) there"),
        (interrupt(30, 0, 2, movable=False, effective=(0,)), KEPT, ""),
        (interrupt(31, 3), LIMITED, "the kernel keeps interrupt 31 (eth0) there"),
        (interrupt(32, 2, names="vfio-msix[0](0000:3b:00.0)"), KEPT, ""),
        (interrupt(32, 2, names="vfio-msix[0](0000:3c:00.0)"), BROKEN, None),
    ],
)
def test_quiet_cpus_have_no_work_that_can_move(host, mask, state, found):
    owners = {"0000:3b:00.0": "a", "0000:3c:00.0": "b"}
    facts = replace(host, masks=(mask,), fixed=frozenset({interrupt(31).path}), owners=owners)
    shown = verdicts(QUIET, facts)[PromiseKind.QUIET]
    assert shown[0] is state
    assert found is None or shown[1] == found


def test_masks_that_cannot_be_read_keep_no_promise(host):
    shown = verdicts(QUIET, replace(host, masks=None))[PromiseKind.QUIET]
    assert shown == (UNKNOWN, "the masks of interrupts cannot be read")


def test_a_process_of_the_host_breaks_the_promise_to_be_alone(host):
    tasks = [HostTask(100 + number, 100 + number, "cron", cpus(3, 4)) for number in range(6)]
    for alone, state, found in (
        ([], KEPT, ""),
        ([replace(tasks[0], cpus=cpus(4, 5))], KEPT, ""),
        (tasks, BROKEN, "cron (100), cron (101), cron (102), cron (103) and 2 more may run there"),
    ):
        facts = replace(host, tasks=tuple(alone))
        assert verdicts(replace(QUIET, alone=True), facts)[PromiseKind.ALONE] == (state, found)


def test_a_guest_that_cannot_be_read_has_unknown_promises(host):
    asks = replace(
        QUIET,
        mems=cpus(0),
        group="g",
        caches={0: CachePromise(2, 20)},
        thread_policy=ThreadPolicy.ISOLATE,
        priority=5,
        core_group="guest a",
    )
    found = verdicts(asks, with_guest(host, problem="it has ended"))
    assert found.keys() == set(PromiseKind) - {PromiseKind.ALONE, PromiseKind.DEVICES}
    assert set(found.values()) == {(UNKNOWN, "it has ended")}
    assert set(verdicts(asks, replace(host, guests={})).values()) == {(UNKNOWN, "it was not read")}


def test_broken_promises_are_counted_by_kind(host):
    found = judge_promises([QUIET], replace(with_guest(host, threads={}), masks=(interrupt(1, 2),)))
    counts = count_broken(found)
    assert counts.keys() == set(PromiseKind)
    assert broken_text(counts) == "1 cpus, 1 quiet"
    assert broken_text(count_broken([])) == ""


CARD, GPU = "0000:81:00.0", "0000:0a:00.0"
CARDS = {CARD: CARD, "0000:81:02.0": CARD, "0000:81:02.1": CARD, GPU: GPU}


@pytest.mark.parametrize(
    ("held", "has", "state", "found"),
    [
        ({GPU: 1}, {GPU, "0000:00:1f.0"}, KEPT, ""),
        ({CARD: 2}, {"0000:81:02.0", "0000:81:02.1"}, KEPT, ""),
        ({CARD: 2}, {"0000:81:02.1"}, BROKEN, f"it has 1 of {CARD}, and holds 2"),
        ({CARD: 1}, {GPU}, BROKEN, f"it has 1 of {GPU}, and holds 0; it has 0 of {CARD}, and holds 1"),
        ({}, {GPU}, BROKEN, f"it has 1 of {GPU}, and holds 0"),
        (
            {GPU: 1},
            None,
            UNKNOWN,
            "the agent does not know the devices of such guests, and does not restrict them",
        ),
    ],
)
def test_a_guest_has_the_devices_that_it_holds(host, held, has, state, found):
    devices = None if has is None else frozenset(has)
    facts = replace(with_guest(host, devices=devices), cards=CARDS)
    assert verdicts(replace(PINNED, devices=held), facts)[PromiseKind.DEVICES] == (state, found)


def test_a_guest_without_devices_has_no_promise_of_them(host):
    facts = replace(with_guest(host, devices=frozenset({"0000:00:1f.0"})), cards=CARDS)
    assert PromiseKind.DEVICES not in verdicts(PINNED, facts)


OWN, USUAL, NOVA = realtime_schedule(5, in_turn=False), ThreadSchedule(), ThreadSchedule(os.SCHED_FIFO, 1)


@pytest.mark.parametrize(
    ("schedules", "vcpus", "refused", "state", "found"),
    [
        ({11: OWN, 12: OWN}, True, (), KEPT, ""),
        # The emulator's thread is on other CPUs, and has the usual schedule.
        ({10: USUAL, 11: OWN, 12: OWN}, True, (), KEPT, ""),
        ({11: OWN, 12: USUAL}, True, (), BROKEN, "1 thread without, such as 12"),
        ({11: OWN, 12: USUAL}, False, (), LIMITED, "1 new thread until the next reconcile"),
        ({11: USUAL, 12: USUAL}, False, (), BROKEN, "2 threads without, such as 11"),
        ({10: OWN}, True, (), BROKEN, "no thread of a guest CPU has dedicated CPUs alone"),
        ({11: USUAL, 12: USUAL}, True, ("no right",), LIMITED, "no right"),
        ({11: OWN, 12: OWN}, True, ("no right",), KEPT, ""),
        ({11: NOVA, 12: NOVA}, True, (), LIMITED, "priority 1 of another program"),
    ],
)
def test_threads_of_guest_cpus_have_the_realtime_priority(host, schedules, vcpus, refused, state, found):
    facts = with_guest(host, schedules=schedules, vcpus=IN_PLACE.vcpus if vcpus else {})
    facts = replace(facts, refused={("a", PromiseKind.REALTIME): refused} if refused else {})
    assert verdicts(replace(PINNED, priority=5), facts)[PromiseKind.REALTIME] == (state, found)


@pytest.mark.parametrize(
    ("own", "other", "group", "refused", "state", "found"),
    [
        ({10: 7, 11: 7}, {20: 8}, "guest b", (), KEPT, ""),
        ({10: 7, 11: 7}, {20: 0}, "", (), KEPT, ""),
        ({10: 7, 11: 9}, {20: 8}, "", (), KEPT, ""),
        ({10: 7, 11: 7}, None, "", (), KEPT, ""),
        ({10: 7, 11: 7}, {20: 7}, "class C", (), KEPT, ""),
        ({10: 7, 11: 7}, {20: 8, 21: 7}, "guest b", (), BROKEN, "guest b has the same cookie"),
        ({10: 7, 11: 7}, {20: 7}, "", (), BROKEN, "guest b has the same cookie"),
        ({10: 7, 11: 0}, {20: 0}, "", (), BROKEN, "1 thread without a cookie, such as 11"),
        ({10: 0}, {}, "", ("no kernel",), LIMITED, "no kernel"),
        (None, None, "", ("no kernel",), LIMITED, "no kernel"),
        (None, None, "", (), UNKNOWN, "no cookie can be read"),
    ],
)
def test_strangers_have_other_core_cookies(host, own, other, group, refused, state, found):
    facts = with_guest(host, cookies=own)
    facts = replace(
        facts,
        guests={**facts.guests, "b": ObservedGuest(threads={20: cpus(5)}, cookies=other)},
        refused={("a", PromiseKind.CORE_SCHEDULING): refused} if refused else {},
    )
    promises = [replace(PINNED, core_group="class C"), GuestPromises("b", "b", core_group=group)]
    [verdict] = [
        one for one in judge_promises(promises, facts) if (one.guest, one.kind) == ("a", "core_scheduling")
    ]
    assert (verdict.state, verdict.found) == (state, found)
    if refused or found:
        return
    # Each core of the host has one thread that is online.
    few = replace(facts.topology, online=frozenset({0, 2, 4, 6}))
    facts = replace(with_guest(facts, cookies=None), topology=few)
    assert verdicts(promises[0], facts)[PromiseKind.CORE_SCHEDULING] == (KEPT, "")
