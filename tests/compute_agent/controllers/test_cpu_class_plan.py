"""Tests of the class of each CPU: in a frequency domain, the strongest claim decides for all its CPUs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.controllers.cpu_class_plan import (
    ClassBinding,
    CpuClassClaim,
    CpuClasses,
    decide_files,
    make_claims,
)
from compute_agent.host.cpu_power import CpuPower, FrequencyDomain, UncoreDomain
from compute_agent.model.cpuset import CpuClass, CpuSets, NamedFrequency
from tests.compute_agent.builders import build_guest, cpu_set
from tests.compute_agent.controllers.builders import class_target

FAST = CpuClass("fast", "performance", NamedFrequency.BASE, NamedFrequency.TURBO, "performance", ("C6",))
SLOW = CpuClass("slow", "powersave", None, NamedFrequency.MIN)
IDLE, SHARED = CpuClass("idle", "powersave"), CpuClass("shared", "schedutil")
CLASSES = {one.name: one for one in (FAST, SLOW, IDLE, SHARED)}
BINDINGS = {"LSR": ClassBinding(20, FAST), "LS": ClassBinding(10), "BE": ClassBinding(0, SLOW)}
CONFIGURED = CpuClasses(
    CLASSES, BINDINGS, CpuSets(frozenset(range(2, 8)), frozenset({0, 1}), frozenset({0, 1}))
)


def domain(folder, *members, **fields):
    fields = {
        "driver": "acpi-cpufreq",
        "governors": ("performance", "powersave", "schedutil"),
        "preferences": ("performance", "power"),
        "min_khz": 1000,
        "base_khz": 2000,
        "max_khz": 3000,
        **fields,
    }
    return FrequencyDomain(f"policy{folder}", cpu_set(*members), **fields)


def power(*domains, uncore=()):
    everything = {cpu for one in domains for cpu in one.cpus}
    states = {cpu: {"C1": f"cpu{cpu}/state1", "C6": f"cpu{cpu}/state2"} for cpu in everything}
    return CpuPower(domains, states, uncore)


def texts(plan):
    return {path: setting.text for path, setting in plan.settings.items()}


def test_claims_are_of_guests_by_rank_then_of_shared_cpus_then_of_unheld_ones():
    guests = [
        class_target("a", "BE", 2),
        class_target("b", "LSR", 3),
        class_target("c", "LS", 4),
        class_target("d", "LS"),
        class_target("e", "unknown", 5),
    ]
    assert make_claims(CONFIGURED, guests, lost=False) == [
        CpuClassClaim(cpu_set(5)),
        CpuClassClaim(cpu_set(3), FAST),
        CpuClassClaim(cpu_set(4)),
        CpuClassClaim(cpu_set(2), SLOW),
        CpuClassClaim(cpu_set(0, 1), SHARED),
        CpuClassClaim(cpu_set(2, 3, 4, 5, 6, 7), IDLE),
    ]


def test_a_guest_may_have_a_class_of_its_own_or_none_if_it_is_preserved():
    own = replace(class_target("a", "LSR", 3), guest=build_guest("a", qos_class="LSR", cpu_class="slow"))
    left = replace(class_target("b", "BE", 4), guest=build_guest("b", qos_class="BE", preserve=True))
    unknown = replace(class_target("c", "LSR", 5), guest=build_guest("c", qos_class="LSR", cpu_class="gone"))
    claims = make_claims(CONFIGURED, [own, left, unknown], lost=False)
    assert claims[:3] == [
        CpuClassClaim(cpu_set(4)),
        CpuClassClaim(cpu_set(5), FAST),
        CpuClassClaim(cpu_set(3), SLOW),
    ]


def test_cpus_that_a_lost_guest_may_hold_stay_as_they_are():
    claims = make_claims(CONFIGURED, [class_target("b", "LSR", 3)], lost=True)
    assert claims == [
        CpuClassClaim(cpu_set(3), FAST),
        CpuClassClaim(cpu_set(2, 3, 4, 5, 6, 7), frozen=True),
        CpuClassClaim(cpu_set(0, 1), SHARED),
    ]
    plan = decide_files(power(domain(0, 0, 1, 2), domain(3, 3), domain(4, 4)), claims)
    assert {path.split("/")[0] for path in plan.settings} == {"policy3", "cpu3"}
    assert plan.frozen >= {"policy0", "policy4", "cpu4/state2"}


def test_cpus_of_both_sets_are_shared_ones_unless_a_guest_holds_them():
    both = CpuSets(cpu_set(0, 1, 2), cpu_set(0, 1, 2), cpu_set(0, 1, 2))
    assert make_claims(replace(CONFIGURED, cpu_sets=both), [class_target("b", "LSR", 1)], lost=False) == [
        CpuClassClaim(cpu_set(1), FAST),
        CpuClassClaim(cpu_set(0, 1, 2), SHARED),
        CpuClassClaim(cpu_set(), IDLE),
    ]


def test_words_are_frequencies_of_the_domain():
    plan = decide_files(
        power(domain(0, 0), domain(1, 1, min_khz=500, base_khz=900)), [CpuClassClaim(cpu_set(0, 1), FAST)]
    )
    assert texts(plan) == {
        "policy0/scaling_governor": "performance",
        "policy0/energy_performance_preference": "performance",
        "policy0/scaling_min_freq": "2000",
        "policy0/scaling_max_freq": "3000",
        "policy1/scaling_governor": "performance",
        "policy1/energy_performance_preference": "performance",
        "policy1/scaling_min_freq": "900",
        "policy1/scaling_max_freq": "3000",
        "cpu0/state2/disable": "1",
        "cpu1/state2/disable": "1",
    }
    assert plan.missing == {}
    assert plan.classes == {"fast": {0, 1}}


def test_the_strongest_decides_for_its_domain_and_idle_states_are_each_cpus_own():
    plan = decide_files(
        power(domain(0, 0, 1, 2)), [CpuClassClaim(cpu_set(1), SLOW), CpuClassClaim(cpu_set(2), FAST)]
    )
    assert texts(plan) == {
        "policy0/scaling_governor": "powersave",
        "policy0/scaling_max_freq": "1000",
        "cpu2/state2/disable": "1",
    }
    assert plan.classes == {"slow": {0, 1, 2}}


def test_a_guest_without_a_class_keeps_its_domain_from_idle():
    plan = decide_files(
        power(domain(0, 0, 1), domain(2, 2)), [CpuClassClaim(cpu_set(0)), CpuClassClaim(cpu_set(1, 2), IDLE)]
    )
    assert texts(plan) == {"policy2/scaling_governor": "powersave"}


@pytest.mark.parametrize(
    ("one", "domain_fields", "missing", "wanted"),
    [
        (
            CpuClass("x", "ondemand"),
            {},
            "[cpu_class:x] governor = ondemand: this kernel has performance, powersave, schedutil (CPU 0)",
            {},
        ),
        (
            CpuClass("x", energy_preference="power"),
            {"preferences": ()},
            "[cpu_class:x] energy_performance_preference = power: this kernel has none (CPU 0)",
            {},
        ),
        (
            CpuClass("x", "performance", energy_preference="power"),
            {"driver": "intel_pstate"},
            "[cpu_class:x] energy_performance_preference = power: intel_pstate accepts only performance"
            " with that governor (CPU 0)",
            {"scaling_governor": "performance"},
        ),
        (
            CpuClass("x", max_frequency=9000),
            {},
            "[cpu_class:x] max_frequency = 9000: it is 3000 kHz, because the CPUs have no such frequency"
            " (CPU 0)",
            {"scaling_max_freq": "3000"},
        ),
        (
            CpuClass("x", min_frequency=NamedFrequency.BASE),
            {"base_khz": None},
            "[cpu_class:x] min_frequency = base: this kernel does not report that frequency (CPU 0)",
            {},
        ),
        (
            CpuClass("x", min_frequency=2500, max_frequency=NamedFrequency.BASE),
            {},
            "[cpu_class:x] min_frequency is above max_frequency: both are 2000 kHz (CPU 0)",
            {"scaling_min_freq": "2000", "scaling_max_freq": "2000"},
        ),
        (
            CpuClass("x", disabled_c_states=("C3",)),
            {},
            "[cpu_class:x] disabled_c_states = C3: this kernel has C1, C6 (CPU 0)",
            {},
        ),
        (
            CpuClass("x", max_uncore=NamedFrequency.MIN),
            {},
            "[cpu_class:x] uncore frequencies cannot be set on this host (CPU 0)",
            {},
        ),
    ],
)
def test_missing_settings_are_reported_and_the_rest_is_planned(one, domain_fields, missing, wanted):
    plan = decide_files(power(domain(0, 0, **domain_fields)), [CpuClassClaim(cpu_set(0), one)])
    assert plan.missing == {"x": (missing,)}
    assert texts(plan) == {f"policy0/{name}": text for name, text in wanted.items()}


def test_a_host_without_cpufreq_says_so_once_for_all_cpus():
    states = {cpu: {"C6": f"cpu{cpu}/state2"} for cpu in (0, 1)}
    plan = decide_files(CpuPower((), states), [CpuClassClaim(cpu_set(0, 1), FAST)])
    assert plan.missing == {
        "fast": ("[cpu_class:fast] governor, frequencies: this kernel has no cpufreq (CPUs 0-1)",)
    }
    assert set(texts(plan)) == {"cpu0/state2/disable", "cpu1/state2/disable"}
    assert plan.classes == {"fast": {0, 1}}


def test_a_package_has_the_uncore_of_its_strongest():
    calm = CpuClass("calm", max_uncore=NamedFrequency.MIN)
    two = (UncoreDomain("u0", cpu_set(0, 1), 800, 2400), UncoreDomain("u1", cpu_set(2, 3), 800, 2400))
    on = power(domain(0, 0), domain(1, 1), domain(2, 2), domain(3, 3), uncore=two)
    plan = decide_files(on, [CpuClassClaim(cpu_set(0), FAST), CpuClassClaim(cpu_set(1, 2), calm)])
    assert {path: text for path, text in texts(plan).items() if path.startswith("u")} == {
        "u1/max_freq_khz": "800"
    }


members = st.lists(st.integers(0, 3), min_size=8, max_size=8)
claims_of_any = st.lists(
    st.tuples(st.frozensets(st.integers(0, 7)), st.sampled_from([None, *CLASSES.values()]), st.booleans()),
    max_size=5,
)


@given(members, claims_of_any)
def test_in_any_host_each_domain_is_as_its_first_claim_has_it(places, wanted):
    domains = [
        domain(number, *(cpu for cpu, place in enumerate(places) if place == number))
        for number in sorted(set(places))
    ]
    claims = [CpuClassClaim(held, None if frozen else one, frozen) for held, one, frozen in wanted]
    plan = decide_files(power(*domains), claims)
    for one in domains:
        governor = plan.settings.get(f"{one.folder}/scaling_governor")
        expected = None
        for claim in reversed(claims):  # the judge of the test: stronger claims overwrite earlier claims
            if any(cpu in claim.cpus for cpu in one.cpus):
                expected = claim
        assert (one.folder in plan.frozen) == (expected is not None and expected.frozen)
        if expected is None or expected.cpu_class is None:
            assert governor is None
        else:
            assert (governor.text, governor.cpus) == (expected.cpu_class.governor, one.cpus)
    for cpu in range(8):
        own = next((claim for claim in claims if cpu in claim.cpus), CpuClassClaim(cpu_set()))
        disabled = f"cpu{cpu}/state2/disable" in plan.settings
        assert disabled == (own.cpu_class is FAST)
