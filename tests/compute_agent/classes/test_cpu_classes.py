"""Tests of the sections that define classes of CPUs."""

import pytest

from compute_agent.agent.config_warnings import config_warnings, cpu_class_warnings
from compute_agent.agent.host_access import HostResctrl
from compute_agent.classes.cpu_classes import parse_cpu_classes
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.host.cpu_power import read_cpu_power
from compute_agent.model.cpuset import CpuClass, NamedFrequency
from compute_agent.model.messages import ConfigError
from tests.compute_agent.power_trees import epyc


def test_a_class_is_its_options(load):
    conf = load(
        "[cpu_class:fast]\ngovernor = performance\nmin_frequency = base\nmax_frequency = 3100000\n"
        "energy_performance_preference = performance\ndisabled_c_states = C1E, C6\n"
        "uncore_min_frequency = min\nuncore_max_frequency = turbo\n[cpu_class:idle]\ngovernor = powersave\n"
        "[cpu_class:NAME]\n"
    )
    assert parse_cpu_classes(conf) == {
        "fast": CpuClass(
            "fast",
            "performance",
            NamedFrequency.BASE,
            3_100_000,
            "performance",
            ("C1E", "C6"),
            NamedFrequency.MIN,
            NamedFrequency.TURBO,
        ),
        "idle": CpuClass("idle", "powersave"),
    }


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            "min_frequency = fast",
            r"min_frequency = 'fast': a number of kHz is needed, or min or base or turbo",
        ),
        ("max_frequency = 0", "max_frequency = '0'"),
        ("max_frequency = 1234567890", "max_frequency"),
        ("uncore_max_frequency = base", "a number of kHz is needed, or min or turbo"),
        (
            "min_frequency = turbo\nmax_frequency = base",
            r"min_frequency = turbo is above max_frequency = base",
        ),
        ("min_frequency = 2\nmax_frequency = 1", "min_frequency = 2 is above"),
        ("governor = power save", "governor = 'power save': one word"),
        ("disabled_c_states = C 6", "disabled_c_states = 'C 6': one word"),
    ],
)
def test_bad_values_are_refused_by_name(load, options, match):
    with pytest.raises(ConfigError, match=match):
        parse_cpu_classes(load(f"[cpu_class:x]\n{options}\n"))


@pytest.mark.parametrize("text", ["[cpu_class:x]\ngoverner = a\n", "[cpu_class]\ngovernor = a\n"])
def test_misspelt_sections_and_options_are_refused(load, text):
    with pytest.raises(Exception, match=r"there is no such (option|section)"):
        load(text)


def test_a_class_of_guests_names_one_that_is_there(load):
    conf = load("[cpu_class:fast]\ngovernor = performance\n[qos_class:LSR]\ncpu_class = fast\n")
    assert parse_classes(conf).classes["LSR"].cpu_class == "fast"
    with pytest.raises(ConfigError, match=r"no section \[cpu_class:quick\]; there are none"):
        parse_classes(load("[qos_class:LSR]\ncpu_class = quick\n"))


def test_settings_without_effect_on_this_host_are_warnings(tmp_path):
    epyc(tmp_path)
    classes = {
        "fast": CpuClass("fast", "turbo"),
        "idle": CpuClass("idle", "powersave"),
        "old": CpuClass("old", "powersave"),
    }
    assert list(cpu_class_warnings(classes, read_cpu_power(tmp_path), {"fast", ""})) == [
        "[cpu_class:fast] governor = turbo: this kernel has conservative, ondemand, userspace, powersave,"
        " performance, schedutil (CPUs 0-7)",
        "[cpu_class:old] applies to no CPU: name it in cpu_class of a [qos_class:NAME] or"
        " [guest_rule:NAME], or call it idle or shared",
    ]


@pytest.mark.parametrize(
    ("text", "driver", "is_named"),
    [
        ("[qos_class:LSR]\ncpu_class = fast\n", "process", True),
        ("[guest_rule:r]\nmatch_name = *\ncpu_class = fast\n", "process", True),
        ("", "process", False),
        # Flavors of Nova name classes, and the host does not know which.
        ("", "libvirt", True),
        ("[guests]\nflavor_settings = qos_class\n", "libvirt", False),
    ],
)
def test_a_class_that_guests_may_have_is_not_warned_of(load, tmp_path, text, driver, is_named):
    conf = load(f"{text}[host]\nroot = {tmp_path}\n[cpu_class:fast]\ndisabled_c_states = C6\n")
    warnings = config_warnings(conf, None, HostResctrl(None, "off"), driver)
    assert any("[cpu_class:fast] applies to no CPU" in warning for warning in warnings) is not is_named
