"""Tests of CPU frequencies and idle states of a host, with the files of two kinds of machines."""

from compute_agent.host.cpu_power import CpuPower, FrequencyDomain, UncoreDomain, read_cpu_power
from tests.compute_agent.power_trees import CPUS, epyc, xeon


def test_a_xeon_has_a_domain_for_each_cpu_and_uncore_for_each_package(tmp_path):
    xeon(tmp_path)
    power = read_cpu_power(tmp_path)
    assert power.frequency_domains[5] == FrequencyDomain(
        f"{CPUS}/cpufreq/policy5",
        frozenset({5}),
        "intel_pstate",
        ("performance", "powersave"),
        ("default", "performance", "balance_performance", "balance_power", "power"),
        800_000,
        2_000_000,
        3_200_000,
    )
    assert [domain.cpus for domain in power.frequency_domains] == [{cpu} for cpu in range(8)]
    assert power.uncore_domains == tuple(
        UncoreDomain(
            f"{CPUS}/intel_uncore_frequency/package_0{package}_die_00",
            frozenset(range(4 * package, 4 * package + 4)),
            800_000,
            2_400_000,
        )
        for package in (0, 1)
    )
    assert power.idle_states[7]["C1E"] == f"{CPUS}/cpu7/cpuidle/state2"
    assert power.cpus == frozenset(range(8))


def test_an_epyc_has_shared_domains_and_a_base_frequency_by_its_table(tmp_path):
    epyc(tmp_path)
    power = read_cpu_power(tmp_path)
    assert [domain.cpus for domain in power.frequency_domains] == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert {domain.base_khz for domain in power.frequency_domains} == {2_000_000}
    assert power.frequency_domains[0].preferences == ()
    assert power.uncore_domains == ()
    assert list(power.idle_states[3]) == ["POLL", "C1", "C2"]


def test_an_entry_just_above_the_next_one_stands_for_turbo(tmp_path):
    files = epyc(tmp_path, cpus=4)
    files.set(f"{CPUS}/cpufreq/policy0/scaling_available_frequencies", "2101000 2100000 1800000")
    assert read_cpu_power(tmp_path).frequency_domains[0].base_khz == 2_100_000


def test_a_domain_with_all_cpus_offline_is_left_out(tmp_path):
    files = epyc(tmp_path)
    files.set(f"{CPUS}/cpufreq/policy4/affected_cpus", "")
    files.set(f"{CPUS}/online", "0-3")
    power = read_cpu_power(tmp_path)
    assert [domain.cpus for domain in power.frequency_domains] == [{0, 1, 2, 3}]
    assert power.cpus == {0, 1, 2, 3}


def test_clusters_of_uncore_count_for_their_package_without_dies(tmp_path):
    xeon(tmp_path)
    uncore = tmp_path / CPUS / "intel_uncore_frequency"
    (uncore / "package_00_die_00").rename(uncore / "uncore00")
    (uncore / "package_01_die_00").rename(uncore / "uncore01")
    (uncore / "uncore00/package_id").write_text("0\n")
    (uncore / "uncore01/package_id").write_text("1\n")
    assert [domain.cpus for domain in read_cpu_power(tmp_path).uncore_domains] == [
        {0, 1, 2, 3},
        {4, 5, 6, 7},
    ]


def test_a_host_without_power_files_has_no_settings(tmp_path):
    assert read_cpu_power(tmp_path) == CpuPower()


def test_odd_content_is_ignored(tmp_path):
    files = xeon(tmp_path)
    files.set(f"{CPUS}/cpufreq/policy0/affected_cpus", "zero -1 0x2")
    files.set(f"{CPUS}/cpufreq/policy1/cpuinfo_min_freq", "slow")
    power = read_cpu_power(tmp_path)
    assert len(power.frequency_domains) == 7
    assert power.frequency_domains[0].min_khz is None
