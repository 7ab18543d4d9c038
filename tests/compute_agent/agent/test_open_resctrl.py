"""Tests of whether the agent can use resctrl on a host, and of the reason if not."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from compute_agent.agent.configured_controllers import ControllerFactory, open_stores
from compute_agent.agent.host_access import offered_platform, open_resctrl, resctrl_signature
from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.model.cpuset import FormerValues
from compute_agent.pipeline.metrics import AgentMetrics
from tests.compute_agent.builders import load_text
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.pipeline.fake_host import HOST_STATE
from tests.compute_agent.resctrl import fake


@pytest.fixture
def load(tmp_path):
    """A function that loads a configuration for the host below `tmp_path`."""

    def load(**resctrl):
        lines = "".join(f"{name} = {value}\n" for name, value in resctrl.items())
        return load_text(tmp_path, f"[host]\nroot = {tmp_path}\n[resctrl]\n{lines}")

    return load


@pytest.fixture
def files(tmp_path):
    (tmp_path / "sys/fs").mkdir(parents=True)
    return fake.FakeResctrl.of(fake.AMD, tmp_path / "sys/fs/resctrl")


def mounted(tmp_path, options="rw"):
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/mounts").write_text(f"resctrl /sys/fs/resctrl resctrl {options} 0 0\n")


def names(conf, resctrl):
    stores = open_stores(SimpleNamespace(former_values=FormerValues()), Path(conf.state_path))
    factory = ControllerFactory(FakeDriver([0]), stores, AgentMetrics())
    made = factory.build_controllers(conf, resctrl, HOST_STATE)
    return [controller.name for controller in made]


def test_a_mount_gives_a_controller_and_an_inventory(load, files, tmp_path):
    mounted(tmp_path)
    conf = load(shared_ways=3, memory_bandwidth_gbps=100, group_prefix="mine-")
    resctrl = open_resctrl(conf, acting=True)
    assert resctrl.off == ""
    assert "resctrl" in names(conf, resctrl)
    platform = offered_platform(resctrl.control, DEFAULT_CLASSES)
    assert (platform.domains[0].ways, platform.domains[0].reserved_ways) == (16, 3)
    assert resctrl.control.codec.encode_percent(0, 100) == 800
    assert resctrl.control.is_ours("mine-class.LS")


@pytest.mark.parametrize(
    ("options", "told"),
    [("ro,relatime", "mounted read-only"), (None, "is a copy of resctrl, and not a mount")],
)
def test_a_resctrl_that_cannot_be_written_has_no_controller(options, told, load, files, tmp_path):
    if options is not None:
        mounted(tmp_path, options)
    conf = load()
    resctrl = open_resctrl(conf, acting=True)
    assert told in resctrl.off
    assert "resctrl" not in names(conf, resctrl)


def test_a_captured_tree_shows_its_inventory(load, files):
    platform = offered_platform(open_resctrl(load()).control, DEFAULT_CLASSES)
    assert platform.domains[1].ways == 16


def test_there_is_no_controller_for_a_user_without_write_permission(load, files, tmp_path, monkeypatch):
    mounted(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written by this user" in open_resctrl(load(), acting=True).off
    assert open_resctrl(load()).off == ""


def test_a_processor_without_limits_has_no_controller(load, tmp_path):
    files = tmp_path / "sys/fs/resctrl"
    (files / "info/L3_MON").mkdir(parents=True)
    (files / "info/L3_MON/num_rmids").write_text("32\n")
    (files / "info/L3_MON/mon_features").write_text("mbm_total_bytes\n")
    (files / "schemata").write_text("")
    mounted(tmp_path)
    resctrl = open_resctrl(load(), acting=True)
    assert resctrl.off == "the processor can limit neither cache ways nor bandwidth"
    assert offered_platform(resctrl.control, DEFAULT_CLASSES).features == {"MBM"}


def test_a_damaged_resctrl_tree_counts_as_absent(load, files, tmp_path):
    mounted(tmp_path)
    (files.root / "schemata").write_text("L3:0=xyz\n")
    assert "xyz" in open_resctrl(load(), acting=True).off


@pytest.mark.parametrize(
    ("option", "value"),
    [("group_prefix", "a/b"), ("group_prefix", ""), ("shared_ways", "0"), ("memory_bandwidth_gbps", "-1")],
)
def test_bad_options_are_refused_by_name(option, value, load):
    with pytest.raises(Exception, match=option):
        load(**{option: value})


def test_only_what_others_do_changes_the_signature(load, files, tmp_path):
    mounted(tmp_path)
    conf = load()
    before = resctrl_signature(conf)
    files.make_folder("compute-agent.guest.a")
    files.write_file("compute-agent.guest.a/schemata", "L3:0=f\n")
    assert resctrl_signature(conf) == before
    files.make_folder("theirs")
    assert (after := resctrl_signature(conf)) != before
    files.write_file("theirs/schemata", "L3:0=f;1=f\n")
    assert resctrl_signature(conf) == after
    (files.root / "theirs/mode").write_text("exclusive\n")
    assert resctrl_signature(conf) != after
    (tmp_path / "proc/mounts").write_text("")
    (files.root / "schemata").unlink()
    assert resctrl_signature(conf) is None
