"""Tests of checks of a configuration: warnings about options without effect, and trials on this host."""

import os

import pytest

from compute_agent.agent.config_warnings import (
    claim_warnings,
    class_warnings,
    cold_memory_warnings,
    config_warnings,
    interference_warnings,
)
from compute_agent.agent.dry_run import try_configuration
from compute_agent.agent.host_access import HostResctrl
from compute_agent.classes.guest_classes import parse_classes
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import CPU_QUOTA, MEMORY_HIGH
from compute_agent.throttling.interference.signals import SIGNALS
from tests.compute_agent.builders import load_text

NAMES = "[docker]\nguest_names = nova_*\n"
UNITS = "[systemd]\nguest_names = postgresql@*.service\n"


@pytest.mark.parametrize(
    ("text", "driver", "parts"),
    [
        ("", "libvirt", []),
        (NAMES, "libvirt,podman", ["[docker] guest_names has no effect"]),
        (NAMES, "libvirt,docker", []),
        (UNITS, "libvirt,docker", ["[systemd] guest_names has no effect: add systemd to [guests] drivers"]),
        (UNITS, "libvirt,systemd", []),
        ("[systemd]\nbus_socket = /run/bus\n", "libvirt", []),
        ("[podman]\npods = pod\n", "docker", ["[podman] pods has no effect"]),
        ("[podman]\npods = pod\n", "podman", []),
        ("[guests]\nclaim = true\n", "libvirt,process", ["[guests] claim has no effect"]),
        ("[guests]\nclaim = true\n", "libvirt,systemd", []),
        ("[guests]\nclaim = true\nclaim_dedicated = LSR, gold\n", "podman", ["there is no class 'gold'"]),
        ("[guests]\nclaim = true\nclaim_dedicated = gold\n[qos_class:gold]\nrank = 5\n", "podman", []),
        ("[guests]\nclaim_dedicated = gold\n", "podman", []),
    ],
)
def test_an_option_without_effect_is_a_warning(tmp_path, text, driver, parts):
    found = list(claim_warnings(load_text(tmp_path, text), driver))
    assert len(found) == len(parts)
    assert all(part in sentence for part, sentence in zip(parts, found, strict=True))


ALL, NONE = "Name:\tagent\nCapEff:\t000001ffffffffff\n", "Name:\tagent\nCapEff:\t0000000000800000\n"


@pytest.mark.parametrize(
    ("options", "limit", "status", "subjects"),
    [
        ("realtime_priority = 5", "", NONE, ["LSR] realtime_priority"]),
        ("realtime_priority = 5\nisolation = quiet", "", NONE, []),
        ("realtime_priority = 5\nisolation = alone", "the kernel: stops them", NONE, ["the kernel"]),
        ("core_scheduling = guest", "the kernel: stops them", ALL, []),
        ("core_scheduling = class", "", NONE, ["LSR] core_scheduling"]),
        ("core_scheduling = class", "", "", ["LSR] core_scheduling"]),
        ("core_scheduling = none", "", "", []),
    ],
)
def test_a_class_that_does_not_get_what_it_asks_for_is_a_warning(tmp_path, options, limit, status, subjects):
    classes = parse_classes(load_text(tmp_path, f"[qos_class:LSR]\n{options}\n")).classes
    found = [
        text.removeprefix("[qos_class:").split(":")[0] for text in class_warnings(classes, limit, status)
    ]
    assert found == subjects


OFFERED = "mode = act\nmemory = true\n"
SWAPS = "Filename\tType\tSize\tUsed\tPriority\n"


@pytest.mark.parametrize(
    ("options", "unusable", "parts"),
    [
        ("cold_memory = true\n" + OFFERED, {}, []),
        ("cold_memory = true\n" + OFFERED, {CPU_QUOTA: "x"}, []),
        (
            "cold_memory = true\n" + OFFERED,
            {MEMORY_HIGH: "the host has no swap"},
            ["because the host has no"],
        ),
        ("cold_memory = true\nmode = act\n", {}, ["mode or memory is off"]),
        ("cold_memory = true\nmemory = true\n", {}, ["mode or memory is off"]),
        # One reason is enough: without swap no memory is found that could be offered.
        ("cold_memory = true\n", {MEMORY_HIGH: "the host has no swap"}, ["no memory is found"]),
        (OFFERED, {MEMORY_HIGH: "the host has no swap"}, []),
    ],
)
def test_cold_memory_without_effect_is_a_warning(tmp_path, options, unusable, parts):
    conf = load_text(tmp_path, f"[capacity]\n{options}")
    found = list(cold_memory_warnings(conf, unusable))
    assert len(found) == len(parts)
    for text, part in zip(found, parts, strict=True):
        assert text.startswith("[capacity] cold_memory: ")
        assert part in text


@pytest.mark.parametrize(("swaps", "is_told"), [("", True), ("/dev/vda partition 1 0 -2\n", False)])
def test_the_check_of_a_configuration_tells_of_a_host_without_swap(tmp_path, swaps, is_told):
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "swaps").write_text(SWAPS + swaps)
    conf = load_text(tmp_path, f"[host]\nroot = {tmp_path}\n[capacity]\ncold_memory = true\n{OFFERED}")
    warnings = config_warnings(conf, None, HostResctrl(None, "off"), "libvirt")
    told = [one for one in warnings if one.startswith("[capacity] cold_memory")]
    assert [one for one in told if "the host has no swap" in one] == told
    assert bool(told) is is_told


def test_each_signal_of_interference_is_checked_and_no_file_stays_open(tmp_path):
    sections = "".join(f"[interference:{name}]\nsignal = {name}\n" for name in SIGNALS)
    conf = load_text(tmp_path, sections)
    missing = dict.fromkeys(("cpu_pressure", "io_pressure", "memory_bandwidth"), "it is missing")
    before = os.listdir("/proc/self/fd")
    found = list(interference_warnings(conf, missing, {}))
    assert os.listdir("/proc/self/fd") == before
    assert {text.split(" ")[3].rstrip(":") for text in found if "it is missing" in text} == {
        "cpu_pressure",
        "io_pressure",
        "memory_bandwidth",
        "llc_occupancy",
    }


PLACEMENT = "[placement]\nauth_type = none\nendpoint = http://localhost:1\n"


def tried(folder, settings=""):
    try_configuration(load_text(folder, f"[DEFAULT]\nstate_path = {folder / 'state'}\n{PLACEMENT}{settings}"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("[interference:a]\nmode = act\n", r"\[interference:a\] signal"),
        ("[interference:a]\nsignal = run_delay\nvictims = NOBODY\n", "there is no class 'NOBODY'"),
        ("[cpu_class:a]\ngovernor = two words\n", "one word is needed"),
        ("[blockio_class:a]\nread_bytes = 0\n", "a rate must be at least 1"),
        ("[capacity]\ncollectors = nobody\n", "no installed package has a collector nobody"),
        ("[watermark:a]\nmetric = nothing\n", "nothing"),
        ("[policy]\nname = static-pools\n", "there is no pool"),
        ("[guest:web]\npriority = 1\n", "the name of the section has to be the uuid of a guest"),
    ],
)
def test_a_trial_refuses_what_an_agent_would_refuse(tmp_path, settings, words):
    tried(tmp_path)
    with pytest.raises(ConfigError, match=words):
        tried(tmp_path, settings)
