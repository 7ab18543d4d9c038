"""Fixtures that run agents in the process of the test."""

import functools

import pytest

from compute_agent.resctrl import mount
from tests.compute_agent.agent.cache_agent import host_tree
from tests.compute_agent.agent.running import RunningAgent
from tests.compute_agent.drivers.containers.fake_engine import FakeEngine
from tests.compute_agent.resctrl import fake


@pytest.fixture
def rig(two_cpus, write_ini, client):
    """A running agent with CPU 0 dedicated and CPU 1 shared."""
    rig = RunningAgent(write_ini, client)
    yield rig
    rig.close()


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A fake engine of containers, which the drivers of agents use."""
    folder = tmp_path / "engine"
    folder.mkdir()
    engine = FakeEngine(folder, monkeypatch)
    engine.serve_drivers(monkeypatch)
    yield engine
    engine.close()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The fake resctrl of a host with two CPUs below `tmp_path`, where agents find it."""
    root = tmp_path / "host"
    host_tree(root)
    monkeypatch.setattr(mount, "ResctrlFilesystem", fake.FakeResctrl)
    return fake.FakeResctrl.of(fake.INTEL, root / "sys/fs/resctrl")


@pytest.fixture
def write_host(two_cpus, write_ini, files):
    """A function that writes the ini file of an agent on the host with the fake resctrl."""
    return functools.partial(write_ini, host=f"root = {files.root.parents[2]}")
