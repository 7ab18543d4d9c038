"""Tests of warnings about cold memory, by ``config check`` and in ``warnings`` of the status."""

import pytest

from compute_agent.agent.config_warnings import cold_memory_warnings, config_warnings
from compute_agent.agent.host_access import HostResctrl
from compute_agent.model.resource import CPU_QUOTA, MEMORY_HIGH
from tests.compute_agent.builders import load_text

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
