"""Tests of reading the options that inventories depend on from an ini file."""

import socket
from pathlib import Path

import pytest
from oslo_config import cfg

from compute_agent import conf
from compute_agent.inventory import options
from compute_agent.inventory.cpu_sets import CpuOptions
from compute_agent.inventory.derive import CONFIGURABLE, InventorySettings


def load(tmp_path: Path, text: str) -> cfg.ConfigOpts:
    path = tmp_path / "agent.conf"
    path.write_text(text)
    return conf.load([], [str(path)])


def test_options_are_those_of_the_file(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        f"""
[DEFAULT]
state_path = {tmp_path}
cpu_allocation_ratio = 8.0
ram_allocation_ratio = 1.5
disk_allocation_ratio = 2.0
reserved_host_memory_mb = 1024
reserved_host_disk_mb = 2048
reserved_host_cpus = 2
vcpu_pin_set = 1-3
[compute]
cpu_dedicated_set = 2-17
cpu_shared_set = 18-47
provider_tree = l3
resource_provider_name = rack1-host7
""",
    )
    assert options.cpu_options(loaded) == CpuOptions("2-17", "18-47", "1-3", 2)
    assert options.settings(loaded) == InventorySettings(
        provider_tree="l3",
        cpu_allocation_ratio=8.0,
        ram_allocation_ratio=1.5,
        disk_allocation_ratio=2.0,
        reserved_host_memory_mb=1024,
        reserved_host_disk_mb=2048,
        disk_gb=options.disk_gb(tmp_path),
        configured=frozenset(CONFIGURABLE),
    )
    assert options.root_name(loaded) == "rack1-host7"


def test_a_ratio_that_is_not_set_begins_as_the_initial_one(tmp_path: Path) -> None:
    found = options.settings(
        load(
            tmp_path,
            f"[DEFAULT]\nstate_path = {tmp_path}\ncpu_allocation_ratio = 0.0\n"
            "initial_cpu_allocation_ratio = 6.0\ninitial_ram_allocation_ratio = 1.25\n"
            "disk_allocation_ratio = 2.0\ninitial_disk_allocation_ratio = 3.0\n",
        )
    )
    ratios = (found.cpu_allocation_ratio, found.ram_allocation_ratio, found.disk_allocation_ratio)
    assert ratios == (6.0, 1.25, 2.0)
    assert found.configured == {"disk_allocation_ratio"}


def test_options_not_set_are_the_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path, f"[DEFAULT]\nstate_path = {tmp_path}\n")
    assert options.cpu_options(loaded) == CpuOptions()
    assert options.settings(loaded) == InventorySettings(disk_gb=options.disk_gb(tmp_path))


@pytest.mark.parametrize(
    ("fqdn", "name"),
    [
        ("host7.rack1.example", "host7.rack1.example"),
        ("localhost", "host7"),
        ("localhost.localdomain", "host7"),
        ("localhost6", "host7"),
    ],
)
def test_the_root_has_the_name_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fqdn: str, name: str
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: fqdn)
    monkeypatch.setattr(socket, "gethostname", lambda: "host7")
    assert options.root_name(load(tmp_path, f"[DEFAULT]\nstate_path = {tmp_path}\n")) == name


def test_option_set_to_nothing_differs_from_one_not_set(tmp_path: Path) -> None:
    loaded = load(tmp_path, "[compute]\ncpu_dedicated_set =\n")
    assert options.cpu_options(loaded) == CpuOptions(cpu_dedicated_set="")


def test_disk_is_that_of_the_folder_to_be_made(tmp_path: Path) -> None:
    assert options.disk_gb(tmp_path / "not" / "there") == options.disk_gb(tmp_path) > 0


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("[compute]\nprovider_tree = ring\n", "provider_tree"),
        ("[DEFAULT]\nreserved_host_memory_mb = -1\n", "reserved_host_memory_mb"),
    ],
)
def test_bad_values_are_refused_by_option(tmp_path: Path, text: str, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        options.settings(load(tmp_path, text))
