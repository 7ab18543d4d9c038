"""Tests of the CPU options, one test for each row of the configuration table, and of refused values."""

from dataclasses import replace

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.messages import ConfigError
from tests.compute_agent.inventory.machines import machine

HOST = machine(cores=8, threads=2, offline=frozenset({15}))


def cpus(text: str) -> frozenset[int]:
    return cpuset.parse(text)


@pytest.mark.parametrize(
    ("options", "dedicated", "shared", "emulator"),
    [
        pytest.param(CpuOptions(), "", "0-14", "0-14", id="none of them: all online CPUs are VCPU"),
        pytest.param(CpuOptions(cpu_dedicated_set="2-5"), "2-5", "", "", id="dedicated alone: PCPU only"),
        pytest.param(CpuOptions(cpu_shared_set="2-5,^3"), "", "2,4-5", "2,4-5", id="shared alone: VCPU only"),
        pytest.param(
            CpuOptions(cpu_dedicated_set="2-5", cpu_shared_set="6-7"), "2-5", "6-7", "6-7", id="both: both"
        ),
        pytest.param(CpuOptions(vcpu_pin_set="2-5"), "2-5", "2-5", "2-5", id="legacy alone: VCPU and PCPU"),
        pytest.param(
            CpuOptions(vcpu_pin_set="2-5", cpu_shared_set="0-1"),
            "",
            "2-5",
            "0-1",
            id="legacy and shared: VCPU from legacy, emulator threads on shared",
        ),
    ],
)
def test_configuration_gives_sets(options: CpuOptions, dedicated: str, shared: str, emulator: str) -> None:
    sets = resolve_cpu_sets(options, HOST)
    assert (sets.dedicated, sets.shared, sets.emulator) == (cpus(dedicated), cpus(shared), cpus(emulator))
    assert bool(sets.warnings) == (options.vcpu_pin_set is not None)


@pytest.mark.parametrize("shared", [None, "0-1"])
def test_legacy_set_is_deprecated_and_names_what_replaces_it(shared: str | None) -> None:
    (warning,) = resolve_cpu_sets(CpuOptions(vcpu_pin_set="2-5", cpu_shared_set=shared), HOST).warnings
    assert "vcpu_pin_set is deprecated" in warning
    assert "cpu_dedicated_set" in warning
    assert ("emulator threads only" in warning) == (shared is not None)
    assert ("aggregates" in warning) == (shared is None)


def test_reserved_host_cpus_alone_reserve_vcpu_with_a_warning() -> None:
    sets = resolve_cpu_sets(CpuOptions(reserved_host_cpus=2), HOST)
    assert sets == CpuSets(
        dedicated=frozenset(),
        shared=cpus("0-14"),
        emulator=cpus("0-14"),
        reserved_vcpus=2,
        warnings=sets.warnings,
    )
    assert len(sets.warnings) == 1
    assert "reserved_host_cpus is deprecated" in sets.warnings[0]


@pytest.mark.parametrize(("dedicated", "online"), [("12-15", "12-14"), ("15", "")])
def test_dedicated_cpus_that_are_offline_are_in_no_set_and_named(dedicated: str, online: str) -> None:
    sets = resolve_cpu_sets(CpuOptions(cpu_dedicated_set=dedicated, cpu_shared_set="0-3"), HOST)
    assert (sets.dedicated, sets.shared, sets.offline) == (
        cpus(online) if online else frozenset(),
        cpus("0-3"),
        frozenset({15}),
    )
    assert "[compute] cpu_dedicated_set: CPU 15 is offline" in sets.offline_warning
    assert "cpu_power_management" in sets.offline_warning


def test_an_offline_cpu_in_both_sets_is_refused() -> None:
    with pytest.raises(ConfigError, match="overlap"):
        resolve_cpu_sets(CpuOptions(cpu_dedicated_set="12-15", cpu_shared_set="12-14"), HOST)


def test_reserved_host_cpus_reserve_of_the_legacy_set_too() -> None:
    sets = resolve_cpu_sets(CpuOptions(vcpu_pin_set="2-5", reserved_host_cpus=1), HOST)
    assert (sets.shared, sets.reserved_vcpus, len(sets.warnings)) == (cpus("2-5"), 1, 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(
            CpuOptions(cpu_dedicated_set="2-9", cpu_shared_set="8-12"), ["overlap", "8-9"], id="overlap"
        ),
        pytest.param(
            CpuOptions(cpu_dedicated_set="14-17"),
            ["cpu_dedicated_set", "16-17 are absent"],
            id="dedicated CPUs absent",
        ),
        pytest.param(
            CpuOptions(cpu_shared_set="14-15"), ["cpu_shared_set", "15 are offline"], id="shared CPU offline"
        ),
        pytest.param(
            CpuOptions(cpu_shared_set="99"), ["cpu_shared_set", "99 are absent"], id="shared CPU absent"
        ),
        pytest.param(
            CpuOptions(vcpu_pin_set="15"), ["vcpu_pin_set", "15 are offline"], id="legacy CPU offline"
        ),
        pytest.param(CpuOptions(cpu_dedicated_set=""), ["cpu_dedicated_set", "no CPU", "0-14"], id="empty"),
        pytest.param(
            CpuOptions(cpu_shared_set="2,^2"), ["cpu_shared_set", "'2,^2'", "no CPU"], id="all excluded"
        ),
        pytest.param(CpuOptions(cpu_shared_set="2,x-3"), ["cpu_shared_set", "'x-3'"], id="bad part"),
        pytest.param(
            CpuOptions(cpu_dedicated_set="2", vcpu_pin_set="3"),
            ["unset vcpu_pin_set"],
            id="dedicated and legacy",
        ),
        pytest.param(
            CpuOptions(cpu_dedicated_set="2", cpu_shared_set="4", vcpu_pin_set="3"),
            ["unset vcpu_pin_set"],
            id="all three",
        ),
        pytest.param(
            CpuOptions(cpu_dedicated_set="2", reserved_host_cpus=1),
            ["reserved_host_cpus = 1", "cpu_dedicated_set"],
            id="reserved and dedicated",
        ),
        pytest.param(
            CpuOptions(cpu_shared_set="2", reserved_host_cpus=1),
            ["reserved_host_cpus = 1", "cpu_shared_set"],
            id="reserved and shared",
        ),
        pytest.param(
            CpuOptions(reserved_host_cpus=16), ["reserved_host_cpus = 16", "15 CPUs"], id="all reserved"
        ),
        pytest.param(
            CpuOptions(vcpu_pin_set="2-3", reserved_host_cpus=3),
            ["reserved_host_cpus = 3", "2-3"],
            id="more reserved than the legacy set has",
        ),
    ],
)
def test_configuration_is_refused_with_the_reason(options: CpuOptions, told: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_cpu_sets(options, HOST)
    for part in told:
        assert part in str(refused.value)


@pytest.mark.parametrize(("options", "reserved"), [(CpuOptions(), 15), (CpuOptions(vcpu_pin_set="2-3"), 2)])
def test_the_host_may_reserve_all_cpus_and_not_one_more(options: CpuOptions, reserved: int) -> None:
    assert resolve_cpu_sets(replace(options, reserved_host_cpus=reserved), HOST).reserved_vcpus == reserved
    with pytest.raises(ConfigError, match=f"within 0 and the {reserved} CPUs"):
        resolve_cpu_sets(replace(options, reserved_host_cpus=reserved + 1), HOST)


def test_a_negative_number_of_cpus_cannot_be_reserved() -> None:
    with pytest.raises(ConfigError, match=r"reserved_host_cpus = -1 is not within 0 and"):
        resolve_cpu_sets(CpuOptions(reserved_host_cpus=-1), HOST)
