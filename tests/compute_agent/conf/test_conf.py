"""Tests of loading the agent's ini files."""

from pathlib import Path

import pytest
from oslo_config import cfg

from compute_agent import conf
from compute_agent.inventory import options


def test_defaults_are_documented_values(tmp_path: Path) -> None:
    loaded = conf.load([], [])
    assert loaded.host.root == "/"
    assert loaded.state_path == "/var/lib/compute-agent"
    assert loaded.compute.provider_tree is None  # found out: beside a nova-compute, else numa
    assert options.DEFAULT_SHAPE == "numa"
    assert loaded.compute.cpu_dedicated_set is None
    assert loaded.compute.update_resources_interval == 60


def test_later_files_override_earlier_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "a.conf", tmp_path / "b.conf"
    first.write_text("[host]\nroot = /a\n[compute]\nprovider_tree = flat\n")
    second.write_text("[host]\nroot = /b\n")
    loaded = conf.load([], [str(first), str(second)])
    assert (loaded.host.root, loaded.compute.provider_tree) == ("/b", "flat")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(cfg.ConfigFilesNotFoundError, match=r"gone\.conf"):
        conf.load([], [str(tmp_path / "gone.conf")])


def test_each_value_of_a_found_file_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["/usr/bin/compute-agent"])
    places = [tmp_path / "compute-agent.conf", tmp_path / "compute-agent.conf.d" / "devices.conf"]
    for number, path in enumerate(places):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"[pci]\ndevice_set = {number}\n")
    assert conf.load([]).pci.device_set == ["0", "1"]


def test_loads_are_independent_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("[host]\nroot = /a\n")
    assert conf.load([], [str(path)]).host.root == "/a"
    assert conf.load([], []).host.root == "/"


def test_every_option_is_listed_once_and_has_a_help_text() -> None:
    listed = [(group, option) for group, options in conf.list_opts() for option in options]
    names = [(group, option.name) for group, option in listed]
    assert len(names) == len(set(names))
    assert [name for name, (_, option) in zip(names, listed, strict=True) if not option.help] == []
    assert {("host", "root"), ("compute", "provider_tree"), ("DEFAULT", "vcpu_pin_set")} <= set(names)
