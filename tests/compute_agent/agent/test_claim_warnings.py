"""Tests of warnings about claims and names of guests that have no effect."""

import pytest

from compute_agent.agent.config_warnings import claim_warnings
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
