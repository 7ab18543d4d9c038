"""Differences between the properties of a service and the files of its group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.foreign.kernel_values import (
    FILES,
    IDLE_FILE,
    differing_files,
    file_writes,
    read_values,
)
from compute_agent.drivers.foreign.values import (
    BURST,
    CPUS,
    DEFAULTS,
    IDLE,
    INFINITY,
    IO_WEIGHT,
    LATENCY,
    MEMORY_LOW,
    MEMORY_MAX,
    NODES,
    OOM_GROUP,
    PAGE_NAMES,
    QUOTA,
    RATES,
    WEIGHT,
    DeviceLimits,
)

WHOLE = {CPUS: frozenset(range(4)), NODES: frozenset({0})}
NONE = frozenset()
READ = RATES[0]
LIMITED = DeviceLimits.from_limits({"8:0": 7})


def rate_line(device, reads):
    """A line of io.max."""
    return f"{device} rbps={reads} wbps=5 riops=max wiops=max"


@pytest.mark.parametrize(
    ("name", "value", "text", "idle", "agrees"),
    [
        (CPUS, frozenset({1, 2}), "1-2", None, True),
        (CPUS, frozenset({1, 2}), "1-3", None, False),
        (CPUS, frozenset({1}), None, None, False),
        (CPUS, NONE, None, None, True),
        (CPUS, NONE, "", None, True),
        (CPUS, NONE, "0-3", None, True),
        (CPUS, NONE, "0-7", None, True),
        (CPUS, NONE, "0-2", None, False),
        (CPUS, frozenset({1}), "nonsense", None, False),
        (NODES, NONE, "0", None, True),
        (NODES, frozenset({1}), "0", None, False),
        (WEIGHT, INFINITY, "100", "0", True),
        (WEIGHT, INFINITY, "100", None, True),
        (WEIGHT, INFINITY, "200", "0", False),
        (WEIGHT, 300, "300", "0", True),
        (WEIGHT, 300, "0", "1", False),
        (WEIGHT, IDLE, "0", "1", True),
        (WEIGHT, IDLE, "1", None, True),
        (WEIGHT, IDLE, "100", "0", False),
        (WEIGHT, INFINITY, None, None, True),
        (WEIGHT, 300, None, None, False),
        (QUOTA, INFINITY, "max 100000", None, True),
        (QUOTA, 500_000, "max 100000", None, False),
        (QUOTA, INFINITY, "50000 100000", None, False),
        (QUOTA, 500_000, "50000 100000", None, True),
        (QUOTA, 500_000, "5000 10000", None, True),
        (QUOTA, 500_000, "60000 100000", None, False),
        (QUOTA, 500_000, "nonsense", None, False),
        (MEMORY_MAX, INFINITY, "max", None, True),
        (MEMORY_MAX, 4096, "4096", None, True),
        (MEMORY_MAX, 4096, "max", None, False),
        (MEMORY_LOW, 0, "0", None, True),
        (MEMORY_LOW, INFINITY, "max", None, True),
        (IO_WEIGHT, 50, "default 50\n8:0 20", None, True),
        (IO_WEIGHT, 50, "default 100", None, False),
        (IO_WEIGHT, 50, "50", None, True),
        (IO_WEIGHT, INFINITY, "default 100", None, True),
        (IO_WEIGHT, 50, None, None, True),
        (IO_WEIGHT, 50, "", None, False),
        (READ, DeviceLimits(), "", None, True),
        (READ, DeviceLimits(), None, None, True),
        (READ, LIMITED, None, None, False),
        (READ, LIMITED, "", None, False),
        (READ, LIMITED, "8:0 rbps=7 wbps=max riops=max wiops=max", None, True),
        (
            READ,
            LIMITED,
            f"{rate_line('8:0', 7)}\n{rate_line('8:16', 'max')}",
            None,
            True,
        ),
        (
            READ,
            LIMITED,
            f"{rate_line('8:0', 7)}\n{rate_line('8:16', 5)}",
            None,
            False,
        ),
        (READ, DeviceLimits(), "8:0 rbps=max wbps=5 riops=max wiops=max", None, True),
        (READ, LIMITED, "8:0", None, False),
        (READ, LIMITED, "nonsense", None, False),
        (LATENCY, LIMITED, "8:0 target=7", None, True),
        (LATENCY, LIMITED, "8:0 target=8", None, False),
        (LATENCY, LIMITED, None, None, True),
        (BURST, 500_000, "25000", None, True),
        (BURST, 500_000, "50000", None, False),
        (BURST, 0, None, None, True),
        (BURST, 500_000, None, None, False),
        (OOM_GROUP, 1, "1", None, True),
        (OOM_GROUP, 1, "0", None, False),
        ("hugetlb.2MB.max", 4096, "max", None, False),
    ],
)
def test_the_kernel_has_a_value_or_not(name, value, text, idle, agrees):
    texts = {"cpu.max": "max 50000", FILES[name]: text, IDLE_FILE: idle}
    assert differing_files({name: value}, texts, WHOLE) == ([] if agrees else [name])


TEXTS = {
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "memory.max": "max",
    "memory.high": "max",
    "memory.low": "0",
    "memory.min": "0",
    "io.weight": "default 100",
    "io.max": "",
    "io.latency": "",
    "cpu.max.burst": "0",
    "memory.oom.group": "0",
    **dict.fromkeys(PAGE_NAMES, "max"),
    IDLE_FILE: "0",
}


def test_a_group_without_limits_has_the_defaults():
    assert read_values(TEXTS) == DEFAULTS


def test_files_that_do_not_exist_have_no_values():
    assert read_values(dict.fromkeys(TEXTS)) == {}


@pytest.mark.parametrize(
    ("file", "text", "name", "value"),
    [
        ("cpuset.cpus", "0-2", CPUS, frozenset({0, 1, 2})),
        ("cpu.weight", "300", WEIGHT, 300),
        (IDLE_FILE, "1", WEIGHT, IDLE),
        ("cpu.max", "25000 50000", QUOTA, 500_000),
        ("memory.max", "4096", MEMORY_MAX, 4096),
        ("io.weight", "default 50\n8:0 100", IO_WEIGHT, 50),
        ("io.max", "8:0 rbps=7 wbps=max riops=max wiops=max", READ, LIMITED),
        ("io.latency", "8:0 target=7", LATENCY, LIMITED),
        ("cpu.max.burst", "50000", BURST, 500_000),
        ("memory.oom.group", "1", OOM_GROUP, 1),
        ("hugetlb.2MB.rsvd.max", "4096", "hugetlb.2MB.rsvd.max", 4096),
    ],
)
def test_a_value_is_read_from_its_file(file, text, name, value):
    assert read_values({**TEXTS, file: text}) == {**DEFAULTS, name: value}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cpu.max", ""),
        ("cpu.max", "max"),
        ("cpu.weight", ""),
        ("cpuset.cpus", "all"),
        ("io.max", "8:0"),
        ("io.max", "8:0 rbps"),
        ("io.latency", "8:0"),
        ("cpu.max.burst", "max"),
    ],
)
def test_other_content_of_a_file_is_refused(file, text):
    with pytest.raises(ValueError, match=r".+"):
        read_values({**TEXTS, file: text})


@pytest.mark.parametrize(
    ("name", "value", "present", "writes"),
    [
        (CPUS, frozenset({1, 2}), {}, [("cpuset.cpus", "1-2")]),
        (CPUS, NONE, {}, [("cpuset.cpus", "0-3")]),
        (WEIGHT, 300, {}, [("cpu.weight", "300")]),
        (WEIGHT, 300, {IDLE_FILE: "1"}, [(IDLE_FILE, "0"), ("cpu.weight", "300")]),
        (WEIGHT, IDLE, {}, [(IDLE_FILE, "1")]),
        (WEIGHT, IDLE, {IDLE_FILE: None}, [("cpu.weight", "1")]),
        (WEIGHT, INFINITY, {IDLE_FILE: "1"}, [(IDLE_FILE, "0"), ("cpu.weight", "100")]),
        (QUOTA, 500_000, {}, [("cpu.max", "50000 100000")]),
        (QUOTA, 500_000, {"cpu.max": "max 20000"}, [("cpu.max", "10000 20000")]),
        (QUOTA, 1, {}, [("cpu.max", "1000 100000")]),
        (QUOTA, 20_000, {"cpu.max": "max 20000"}, [("cpu.max", "2000 100000")]),
        (QUOTA, INFINITY, {"cpu.max": "10000 20000"}, [("cpu.max", "max 20000")]),
        (MEMORY_MAX, INFINITY, {}, [("memory.max", "max")]),
        (MEMORY_LOW, 4096, {}, [("memory.low", "4096")]),
        (IO_WEIGHT, INFINITY, {}, [("io.weight", "default 100")]),
        (READ, LIMITED, {}, [("io.max", "8:0 rbps=7 wbps=max riops=max wiops=max")]),
        (
            READ,
            DeviceLimits.from_limits({"8:16": 9}),
            {"io.max": "8:0 rbps=7 wbps=5 riops=max wiops=max"},
            [
                ("io.max", "8:0 rbps=max wbps=5 riops=max wiops=max"),
                ("io.max", "8:16 rbps=9 wbps=max riops=max wiops=max"),
            ],
        ),
        (LATENCY, LIMITED, {}, [("io.latency", "8:0 target=7")]),
        (LATENCY, DeviceLimits(), {"io.latency": "8:0 target=7"}, [("io.latency", "8:0 target=0")]),
        (BURST, 500_000, {"cpu.max": "20000 20000"}, [("cpu.max.burst", "10000")]),
        (OOM_GROUP, 1, {}, [("memory.oom.group", "1")]),
        ("hugetlb.2MB.max", INFINITY, {}, [("hugetlb.2MB.max", "max")]),
    ],
)
def test_a_value_is_written_to_its_file(name, value, present, writes):
    assert file_writes({name: value}, {**TEXTS, **present}, WHOLE) == writes


@pytest.mark.parametrize(
    ("quota", "burst", "present", "writes"),
    [
        (500_000, 500_000, {}, ["cpu.max 50000 100000", "cpu.max.burst 50000"]),
        # The kernel refuses a burst above the quota.
        (
            *(200_000, 100_000, {"cpu.max": "50000 100000", "cpu.max.burst": "50000"}),
            ["cpu.max.burst 10000", "cpu.max 20000 100000"],
        ),
        (
            *(INFINITY, 0, {"cpu.max": "50000 100000", "cpu.max.burst": "50000"}),
            ["cpu.max.burst 0", "cpu.max max 100000"],
        ),
        # The quota of the short period is below the kernel's minimum, so the period changes.
        (20_000, 20_000, {"cpu.max": "max 20000"}, ["cpu.max 2000 100000", "cpu.max.burst 2000"]),
    ],
)
def test_quota_and_burst_are_written_in_the_order_that_the_kernel_accepts(quota, burst, present, writes):
    found = file_writes({BURST: burst, QUOTA: quota}, {**TEXTS, **present}, WHOLE)
    assert [" ".join(one) for one in found] == writes


@given(
    st.fixed_dictionaries(
        {},
        optional={
            CPUS: st.frozensets(st.integers(0, 3)),
            NODES: st.just(frozenset({0})),
            WEIGHT: st.one_of(st.sampled_from([IDLE, INFINITY]), st.integers(1, 10_000)),
            QUOTA: st.one_of(st.just(INFINITY), st.integers(10_000, 100_000_000)),
            MEMORY_MAX: st.one_of(st.just(INFINITY), st.integers(0, 1 << 50)),
            IO_WEIGHT: st.one_of(st.just(INFINITY), st.integers(1, 10_000)),
            READ: st.one_of(
                st.just(DeviceLimits()), st.integers(1, 1 << 50).map(lambda it: DeviceLimits((("8:0", it),)))
            ),
        },
    ),
    st.sampled_from(["0", "1", None]),
    st.sampled_from(["max 100000", "5000 10000"]),
)
def test_written_values_are_those_of_the_kernel(values, idle, quota):
    texts = {**TEXTS, IDLE_FILE: idle, "cpu.max": quota}
    texts |= dict(file_writes(values, texts, WHOLE))
    assert differing_files(values, texts, WHOLE) == []
