"""Tests of the warning about CPU sets that split a core, which suggests better sets."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from compute_agent.inventory.cpu_sets import CpuOptions, better_sets, resolve_cpu_sets, split_cores
from compute_agent.model import cpuset
from tests.compute_agent.inventory.machines import machine

HOST = machine(nodes=2, cores=4, threads=2)


def far_apart(cores):
    """A machine on which CPUs n and n + cores are threads of one core, as on servers."""
    topology = machine(cores=cores, threads=2)
    pairs = [frozenset({n, n + cores}) for n in range(cores)]
    return replace(
        topology,
        cores=tuple(replace(core, cpus=cpus) for core, cpus in zip(topology.cores, pairs, strict=True)),
    )


def test_the_sets_of_the_example_split_16_cores_and_the_better_ones_none():
    sets = resolve_cpu_sets(CpuOptions("2-17", "18-47"), far_apart(24))
    assert sets.warnings == (
        "[compute] cpu_dedicated_set and cpu_shared_set split 16 cores, such as that of CPUs 2,26: a"
        " guest with a dedicated CPU then shares the core with floating guests."
        " cpu_dedicated_set = 2-9,26-33 and cpu_shared_set = 10-25,34-47 split none",
    )
    assert resolve_cpu_sets(CpuOptions("2-9,26-33", "10-25,34-47"), far_apart(24)).warnings == ()


def test_whole_cores_and_hosts_without_threads_cause_no_warning():
    assert resolve_cpu_sets(CpuOptions("2-7", "8-15"), HOST).warnings == ()
    assert resolve_cpu_sets(CpuOptions("2-6", "7"), machine(cores=8)).warnings == ()
    assert resolve_cpu_sets(CpuOptions("2-6", None), HOST).warnings == ()  # the other half is the host's
    assert (
        resolve_cpu_sets(CpuOptions(vcpu_pin_set="1-6"), HOST)
        .warnings[0]
        .startswith("[DEFAULT] vcpu_pin_set")
    )


def test_where_no_shared_cpu_is_left_that_is_said():
    (warning,) = resolve_cpu_sets(CpuOptions("2", "3"), HOST).warnings
    assert warning.endswith("cpu_dedicated_set = 2-3 and no cpu_shared_set split none")


@given(st.lists(st.sampled_from(["dedicated", "shared", "host"]), min_size=16, max_size=16))
def test_better_sets_split_no_core_and_keep_their_sizes(roles):
    dedicated, shared = (
        frozenset(cpu for cpu, role in enumerate(roles) if role == wanted)
        for wanted in ("dedicated", "shared")
    )
    better, rest = better_sets(dedicated, shared, HOST)
    assert split_cores(better, rest, HOST) == []
    assert (better | rest, better & rest) == (dedicated | shared, frozenset())
    whole = [core.cpus for core in HOST.cores if not (core.cpus & dedicated and core.cpus & shared)]
    for threads in whole:  # right sets stay unchanged
        assert better & threads == dedicated & threads, cpuset.format(threads)
    for node in HOST.numa_nodes:
        assert 0 <= len(better & node.cpus) - len(dedicated & node.cpus) <= 1
