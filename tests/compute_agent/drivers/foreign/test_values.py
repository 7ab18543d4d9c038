"""Values of properties, and the rules for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.base import UNLIMITED, CpuLimits, MemoryLimits
from compute_agent.drivers.foreign.values import (
    BURST,
    CPUS,
    DEFAULTS,
    IDLE,
    INFINITY,
    IO_WEIGHT,
    LATENCY,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    NODES,
    OOM_GROUP,
    PAGE_LIMITS,
    QUOTA,
    RATES,
    WEIGHT,
    DeviceLimits,
    cpu_goal,
    io_goals,
    limit_goals,
    memory_goals,
    node_goal,
    parse_text,
    pending_writes,
    present_limits,
    present_memory,
    value_text,
)
from compute_agent.model.resource import BlockIo, DeviceRates

ONLINE = frozenset(range(8))
THERE = frozenset({"8:0", "8:16", "8:32", "259:0"})
MIB = 1 << 20
numbers = st.integers(0, INFINITY)
sets = st.frozensets(st.integers(0, 8191), max_size=20)
limits = st.dictionaries(st.sampled_from(["8:0", "259:1", "/dev/a b"]), numbers)
kinds = {int: numbers, frozenset: sets, DeviceLimits: limits.map(DeviceLimits.from_limits)}
values = st.sampled_from(sorted(DEFAULTS)).flatmap(
    lambda name: st.tuples(st.just(name), kinds[type(DEFAULTS[name])])
)


def unit(**changes):
    return {**DEFAULTS, **changes}


@given(values)
def test_a_value_is_the_same_after_it_was_kept(pair):
    name, value = pair
    assert parse_text(name, value_text(value)) == value


@pytest.mark.parametrize("text", ["", "-1", "x", str(INFINITY + 1), "٤"])
def test_a_number_that_cannot_be_one_is_refused(text):
    with pytest.raises(ValueError, match=WEIGHT):
        parse_text(WEIGHT, text)


def test_the_agent_decides_on_cpus_and_gives_those_of_the_service_back():
    own = frozenset({0, 1})
    assert cpu_goal(frozenset({4}), ONLINE, unit(AllowedCPUs=own), {}) == {CPUS: {4}}
    assert cpu_goal(ONLINE, ONLINE, unit(AllowedCPUs=frozenset({4})), {CPUS: own}) == {CPUS: own}
    assert cpu_goal(ONLINE, ONLINE, unit(), {}) == {CPUS: frozenset()}


def test_memory_without_a_binding_has_the_nodes_of_the_service():
    both, bound = frozenset({0, 1}), unit(AllowedMemoryNodes=frozenset({1}))
    assert node_goal(frozenset({1}), both, unit(), {}) == {NODES: {1}}
    assert node_goal(frozenset(), both, bound, {NODES: frozenset()}) == {NODES: frozenset()}


def test_memory_of_all_nodes_is_not_bound():
    only = frozenset({0})
    assert node_goal(only, only, unit(), {}) == {NODES: frozenset()}
    assert node_goal(only, only, unit(AllowedMemoryNodes=only), {NODES: frozenset()}) == {NODES: frozenset()}


@pytest.mark.parametrize(
    ("wanted", "present", "noted", "weight"),
    [
        (CpuLimits(300), {}, {}, 300),
        (CpuLimits(100), {}, {}, INFINITY),
        (CpuLimits(100), {WEIGHT: 300}, {WEIGHT: INFINITY}, INFINITY),
        (CpuLimits(idle=True), {}, {}, IDLE),
        (CpuLimits(300, idle=True), {}, {}, IDLE),
        (CpuLimits(), {WEIGHT: IDLE}, {WEIGHT: INFINITY}, INFINITY),
        (CpuLimits(), {}, {}, None),
        (CpuLimits(), {WEIGHT: 300}, {WEIGHT: INFINITY}, None),
        # The service has a weight of its own.
        (CpuLimits(300), {WEIGHT: 50}, {}, 50),
        (CpuLimits(idle=True), {WEIGHT: 50}, {}, 50),
        (CpuLimits(300), {WEIGHT: 80}, {WEIGHT: 50}, 50),
    ],
)
def test_a_weight_of_the_service_stays(wanted, present, noted, weight):
    assert limit_goals(wanted, unit(**present), noted).get(WEIGHT) == weight


@pytest.mark.parametrize(
    ("cores", "present", "noted", "quota"),
    [
        (0.5, {}, {}, 500_000),
        (None, {}, {}, INFINITY),
        (None, {QUOTA: 500_000}, {QUOTA: INFINITY}, INFINITY),
        (None, {QUOTA: 500_000}, {}, 500_000),
        (2, {QUOTA: 500_000}, {}, 500_000),
        (0.3, {QUOTA: 500_000}, {}, 300_000),
        (None, {QUOTA: 300_000}, {QUOTA: 500_000}, 500_000),
        (0.3333333, {}, {}, 333_330),
        (0.000001, {}, {}, 10_000),
    ],
)
def test_the_lower_one_of_two_quotas_applies(cores, present, noted, quota):
    assert limit_goals(CpuLimits(quota=cores), unit(**present), noted)[QUOTA] == quota


@pytest.mark.parametrize(
    ("wanted", "present", "noted", "burst"),
    [
        (CpuLimits(quota=0.5, burst=0.25), {}, {}, 250_000),
        (CpuLimits(quota=0.5, burst=0.75), {}, {}, 500_000),
        (CpuLimits(burst=0.25), {}, {}, 0),
        (CpuLimits(burst=0.25), {QUOTA: 500_000}, {}, 250_000),
        (CpuLimits(quota=0.5), {BURST: 250_000}, {BURST: 0}, 0),
        # The container has a burst of its own.
        (CpuLimits(quota=0.5, burst=0.25), {BURST: 100_000}, {}, 100_000),
        (CpuLimits(quota=0.05), {BURST: 100_000, QUOTA: 200_000}, {}, 50_000),
        (CpuLimits(), {BURST: 50_000, QUOTA: 50_000}, {BURST: 100_000, QUOTA: 200_000}, 100_000),
    ],
)
def test_a_burst_is_at_most_the_quota(wanted, present, noted, burst):
    assert limit_goals(wanted, unit(**present), noted)[BURST] == burst


def test_present_limits_have_the_meanings_of_cgroups():
    assert present_limits(unit()) == CpuLimits(100)
    assert present_limits(unit(CPUWeight=IDLE, CPUQuotaPerSecUSec=1_500_000)) == CpuLimits(0, 1.5, True)
    assert present_limits(unit(**{QUOTA: 1_500_000, BURST: 500_000})) == CpuLimits(100, 1.5, burst=0.5)


def test_limits_of_memory_of_the_service_stay_and_others_are_the_agents():
    wanted = MemoryLimits(maximum=512 * MIB + 1, high=UNLIMITED, low=MIB)
    goals = memory_goals(wanted, unit(MemoryMax=64 * MIB), {})
    assert goals == {MEMORY_MAX: 64 * MIB, MEMORY_HIGH: INFINITY, MEMORY_LOW: MIB}
    goals = memory_goals(wanted, unit(MemoryMax=64 * MIB), {MEMORY_MAX: INFINITY})
    assert goals[MEMORY_MAX] == 512 * MIB


@pytest.mark.parametrize(("own", "wanted", "goal"), [(0, True, 1), (0, False, 0), (1, False, 1)])
def test_processes_are_killed_together_by_the_class_or_by_the_container_itself(own, wanted, goal):
    limits = MemoryLimits(oom_group=wanted)
    assert memory_goals(limits, unit(**{OOM_GROUP: own}), {}) == {OOM_GROUP: goal}
    assert memory_goals(limits, unit(**{OOM_GROUP: 1}), {OOM_GROUP: own}) == {OOM_GROUP: goal}


def test_limits_of_huge_pages_are_set_and_lifted():
    most, reserved = PAGE_LIMITS[2048]
    wanted = MemoryLimits(huge_pages=((2048, 4 * MIB),))
    assert memory_goals(wanted, unit(), {}) == {most: 4 * MIB, reserved: 4 * MIB}
    set_before = unit(**{most: 4 * MIB})
    assert memory_goals(MemoryLimits(huge_pages=()), set_before, {most: INFINITY}) == {most: INFINITY}
    assert memory_goals(MemoryLimits(), set_before, {most: INFINITY}) == {}
    assert present_memory(set_before, wanted, None).huge_pages == ((2048, 4 * MIB),)


def test_a_weight_of_block_io_is_set_and_given_back():
    assert io_goals(BlockIo(50), THERE, unit(), {})[IO_WEIGHT] == 50
    assert io_goals(BlockIo(), THERE, unit(IOWeight=50), {IO_WEIGHT: INFINITY})[IO_WEIGHT] == INFINITY
    assert io_goals(BlockIo(50), THERE, unit(IOWeight=20), {})[IO_WEIGHT] == 20


def test_the_lower_one_of_two_rates_of_a_device_applies():
    read, write, *operations = RATES
    own = DeviceLimits.from_limits({"8:0": 100, "8:16": 500})
    wanted = BlockIo(rates=DeviceRates(300, 400), devices=frozenset({"8:0", "8:16", "8:32"}))
    goals = io_goals(wanted, THERE, unit(**{read: own}), {})
    assert goals[read].by_device == {"8:0": 100, "8:16": 300, "8:32": 300}
    assert goals[write].by_device == dict.fromkeys(wanted.devices, 400)
    assert not goals.keys() & set(operations)
    assert io_goals(BlockIo(), THERE, unit(**{read: goals[read]}), {read: own})[read] == own


def test_rates_of_devices_that_are_gone_are_no_goals():
    read, own = RATES[0], DeviceLimits.from_limits({"8:0": 100, "9:9": 500})
    wanted = BlockIo(rates=DeviceRates(300), devices=frozenset({"8:0", "9:9"}))
    assert io_goals(wanted, THERE, unit(**{read: own}), {})[read].by_device == {"8:0": 100}
    assert io_goals(BlockIo(), THERE, unit(), {read: own})[read].by_device == {"8:0": 100}


def test_a_target_of_latency_of_the_unit_stays():
    own = DeviceLimits.from_limits({"8:0": 100})
    wanted = BlockIo(latency_us=300, devices=frozenset({"8:0", "8:16", "9:9"}))
    goals = io_goals(wanted, THERE, unit(**{LATENCY: own}), {})
    assert goals[LATENCY].by_device == {"8:0": 100, "8:16": 300}
    assert io_goals(BlockIo(), THERE, unit(**{LATENCY: goals[LATENCY]}), {LATENCY: own})[LATENCY] == own
    assert LATENCY not in io_goals(BlockIo(50), THERE, unit(**{LATENCY: own}), {})


@pytest.mark.parametrize("text", ["8:0=1.5", "8:0=-1", "8:0", f"8:0={1 << 64}"])
def test_limits_of_devices_that_are_no_numbers_are_refused(text):
    with pytest.raises(ValueError, match=RATES[0]):
        parse_text(RATES[0], text)


limits = st.builds(
    CpuLimits,
    st.none() | st.integers(1, 10_000),
    st.none() | st.floats(0.01, 64),
    st.booleans(),
    st.floats(0, 64),
)
amounts = st.none() | st.integers(0, 1 << 40) | st.just(UNLIMITED)
pages = st.none() | st.just(()) | st.integers(0, 1 << 40).map(lambda it: ((2048, it),))
memory = st.builds(
    MemoryLimits,
    *(amounts, amounts, st.none() | st.integers(0, 1 << 40)),
    huge_pages=pages,
    oom_group=st.none() | st.booleans(),
)
devices = st.sampled_from(["8:0", "8:16", "259:0"])
rates = st.none() | st.integers(1, 1 << 40)
blockio = st.builds(
    BlockIo,
    st.none() | st.integers(1, 10_000),
    st.builds(DeviceRates, rates, rates, rates, rates),
    latency_us=rates,
    devices=st.frozensets(devices),
)
steps = st.lists(
    st.one_of(
        limits.map(lambda it: lambda has, own: limit_goals(it, has, own)),
        memory.map(lambda it: lambda has, own: memory_goals(it, has, own)),
        st.frozensets(st.integers(0, 9), min_size=1).map(
            lambda it: lambda has, own: cpu_goal(it, ONLINE, has, own)
        ),
        blockio.map(lambda it: lambda has, own: io_goals(it, THERE, has, own)),
    ),
    max_size=8,
)
owns = st.fixed_dictionaries(
    {},
    optional={
        CPUS: st.frozensets(st.integers(0, 7)),
        WEIGHT: st.integers(1, 10_000),
        QUOTA: st.integers(10_000, 10**8),
        BURST: st.integers(0, 10_000),
        OOM_GROUP: st.integers(0, 1),
        LATENCY: st.dictionaries(devices, st.integers(1, 1 << 40)).map(DeviceLimits.from_limits),
        MEMORY_MAX: st.integers(1, 1 << 40),
        IO_WEIGHT: st.integers(1, 10_000),
        RATES[0]: st.dictionaries(devices, st.integers(1, 1 << 40)).map(DeviceLimits.from_limits),
    },
)


@given(owns, steps)
def test_after_any_settings_the_service_gets_its_own_values_back(own, steps):
    """The model of the shell: a value is noted before its first write, and forgotten when it is back."""
    first = unit(**own)
    present, noted = dict(first), {}
    give_back = (
        lambda has, own: cpu_goal(ONLINE, ONLINE, has, own),
        lambda has, own: limit_goals(CpuLimits(100), has, own),
        lambda has, own: memory_goals(MemoryLimits(UNLIMITED, UNLIMITED, 0, None, (), 0, False), has, own),
        lambda has, own: io_goals(BlockIo(), THERE, has, own),
    )
    for choose in (*steps, *give_back):
        goals = choose(present, noted)
        writes = pending_writes(goals, present)
        for name, value in writes.items():
            noted.setdefault(name, present[name])
            present[name] = value
        assert pending_writes(choose(present, noted), present) == {}
        noted = {name: value for name, value in noted.items() if present[name] != value}
        # Quota and limits of memory never exceed those of the service.
        assert all(present[name] <= first[name] for name in (QUOTA, MEMORY_MAX))
        assert present[BURST] <= present[QUOTA]
    assert present == first
    assert noted == {}
