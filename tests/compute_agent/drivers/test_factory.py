"""Which driver a host has."""

import importlib.util

import pytest

from compute_agent import conf as agent_conf
from compute_agent.drivers import factory
from compute_agent.drivers.base import DriverError
from compute_agent.drivers.libvirt import connection


@pytest.fixture
def conf(tmp_path):
    def load(lines):
        ini = tmp_path / "agent.ini"
        ini.write_text(lines)
        return agent_conf.load([], [str(ini)])

    return load


def test_process_guests_are_the_default_without_libvirtd(conf, tmp_path, monkeypatch):
    monkeypatch.setattr(factory, "LIBVIRT_SOCKETS", (tmp_path / "libvirt-sock",))
    driver = factory.open_driver(conf(""), tmp_path / "guests")
    assert driver.name == "process"
    driver.close()


@pytest.mark.parametrize(("module", "name"), [(object(), "libvirt"), (None, "process")])
def test_libvirt_is_the_default_where_it_can_be_used(tmp_path, monkeypatch, module, name):
    (tmp_path / "libvirt-sock").touch()
    monkeypatch.setattr(factory, "LIBVIRT_SOCKETS", (tmp_path / "no", tmp_path / "libvirt-sock"))
    monkeypatch.setattr(importlib.util, "find_spec", {"libvirt": module}.get)
    assert factory.default_name() == name


def test_libvirt_without_its_python_library_is_refused_and_the_library_named(conf, tmp_path, monkeypatch):
    def import_module(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(connection.importlib, "import_module", import_module)
    with pytest.raises(DriverError, match="cannot be used: No module named 'libvirt'"):
        factory.open_driver(conf("[guests]\ndriver = libvirt\n"), tmp_path / "guests")


def test_the_uri_of_libvirtd_is_an_option(conf):
    assert conf("").libvirt.uri == "qemu:///system"
    assert conf("[libvirt]\nuri = qemu:///session\n").libvirt.uri == "qemu:///session"
