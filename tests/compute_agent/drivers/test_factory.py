"""The choice of the driver of a host."""

import importlib.util
import sys

import pytest
from oslo_config import cfg

from compute_agent.drivers import factory
from compute_agent.drivers.factory import DriverLock
from compute_agent.drivers.processes.driver import ProcessDriver
from compute_agent.drivers.systemd.driver import SystemdDriver
from compute_agent.model.messages import DriverError


@pytest.mark.parametrize(
    ("configured", "usable", "remembered", "guests", "name", "words"),
    [
        (None, False, "", 0, "process", ()),
        (None, True, "", 0, "libvirt", ()),
        (["process"], True, "", 0, "process", ()),
        (["libvirt"], False, "", 0, "libvirt", ()),
        (None, True, "libvirt", 3, "libvirt", ()),
        (None, False, "process", 3, "process", ()),
        # If libvirtd is away, the last driver stays, with or without guests.
        (None, False, "libvirt", 3, "libvirt", ("waits for it", "set [guests] drivers = process")),
        (None, False, "libvirt", 0, "libvirt", ("waits for it", "set [guests] drivers = process")),
        # libvirtd came: processes are not forgotten, but where there are none domains may be.
        (None, True, "process", 2, "process", ("the 2 guests", "set [guests] drivers = libvirt")),
        (None, True, "process", 0, "libvirt", ("set [guests] drivers = process",)),
        # The option decides, and says what that means.
        (
            ["process"],
            True,
            "libvirt",
            3,
            "process",
            ("Guests of driver libvirt (3) continue", "no longer manages them"),
        ),
        (
            ["libvirt"],
            False,
            "process",
            1,
            "libvirt",
            ("Guests of driver process (1) continue", "no longer manages them"),
        ),
        (["libvirt"], False, "libvirt", 3, "libvirt", ()),
        # Several drivers stay, another one is added, and one of them goes.
        (None, True, "libvirt,process", 3, "libvirt,process", ()),
        (None, False, "process,libvirt", 0, "process,libvirt", ()),
        (["libvirt", "process"], False, "libvirt", 3, "libvirt,process", ()),
        (["process", "libvirt"], True, "libvirt,process", 3, "process,libvirt", ()),
        (
            ["process"],
            True,
            "libvirt,process",
            {"libvirt": 2, "process": 1},
            "process",
            ("Guests of driver libvirt (2) continue", "no longer manages them"),
        ),
    ],
)
def test_a_driver_stays_until_the_option_changes(configured, usable, remembered, guests, name, words):
    counted = guests if isinstance(guests, dict) else {remembered: guests}
    choice = factory.choose_driver(configured, usable, remembered, counted)
    assert choice.name == name
    assert all(word in choice.notice for word in words)
    assert bool(choice.notice) == bool(words)


def test_an_unknown_driver_is_refused_with_a_remedy(load, tmp_path):
    choice = factory.choose_driver(None, True, "firecracker", {"firecracker": 1})
    with pytest.raises(DriverError, match=r"no driver 'firecracker': set \[guests\] drivers"):
        factory.open_driver(choice.name, load(""), tmp_path / "guests", DriverLock("me"))


@pytest.mark.parametrize(
    ("names", "reason"), [([], "names no driver"), (["process", "libvirt", "process"], "names process twice")]
)
def test_no_driver_and_a_driver_named_twice_are_refused(names, reason):
    with pytest.raises(DriverError, match=rf"\[guests\] drivers {reason}"):
        factory.choose_driver(names, True, "", {})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", None),
        ("drivers = libvirt, process", ["libvirt", "process"]),
        ("drivers = process", ["process"]),
        ("driver = libvirt", ["libvirt"]),
        ("driver = process", ["process"]),
    ],
)
def test_the_option_names_drivers_and_old_files_with_one_driver_are_read(load, text, names):
    assert load(f"[guests]\n{text}\n").guests.drivers == names


def test_an_unknown_driver_in_the_option_is_refused(load):
    with pytest.raises(cfg.ConfigFileValueError, match="lxc"):
        load("[guests]\ndrivers = libvirt, lxc\n")


def test_several_drivers_are_opened_in_their_order_and_one_alone_is_not_wrapped(load, tmp_path):
    folder = tmp_path / "guests"
    alone = factory.open_drivers(load(""), folder, {"process": None})
    assert isinstance(alone, ProcessDriver)
    alone.close()
    conf = load(f"[libvirt]\nuri = qemu:///system?socket={tmp_path}/none\n")
    both = factory.open_drivers(conf, folder, {"libvirt": None, "process": None})
    try:
        assert both.name == "libvirt,process"
        assert both.awaited_drivers == {"libvirt"}
        assert list(both.outage_reasons()) == ["libvirt"]
        assert "driver libvirt: libvirtd" in both.outage_reason
        assert "Guests of driver process are managed" in both.outage_reason
    finally:
        both.close()


def test_a_driver_that_cannot_be_opened_closes_the_others(load, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(ProcessDriver, "close", lambda driver: closed.append(driver.name))
    with pytest.raises(DriverError, match="no driver 'firecracker'"):
        factory.open_drivers(load(""), tmp_path / "guests", {"process": None, "firecracker": None})
    assert closed == ["process"]


def test_use_can_be_limited_if_that_of_one_drivers_guests_can_be(load):
    conf = load("")
    assert factory.unlimited_reason("process", conf)
    assert factory.unlimited_reason("libvirt,process", conf) == ""


@pytest.mark.parametrize(
    ("module", "socket", "usable"), [(object(), True, True), (None, True, False), (object(), False, False)]
)
def test_libvirtd_is_usable_with_its_library_and_its_socket(tmp_path, monkeypatch, module, socket, usable):
    if socket:
        (tmp_path / "libvirt-sock").touch()
    monkeypatch.setattr(importlib.util, "find_spec", {"libvirt": module}.get)
    assert factory.libvirtd_is_usable(f"qemu:///system?socket={tmp_path}/libvirt-sock") is usable


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("qemu:///system", ["/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"]),
        ("qemu+unix:///system", ["/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"]),
        ("qemu:///session", ["/run/user/7/libvirt/libvirt-sock", "/run/user/7/libvirt/virtqemud-sock"]),
        ("qemu:///system?mode=direct&socket=/srv/a%20b", ["/srv/a b"]),
        ("qemu+ssh://host/system", []),
        ("qemu://host/system?socket=/x", []),
        ("qemu:///embed?root=/x", []),
        ("qemu://[", []),
        ("", []),
    ],
)
def test_a_uri_of_libvirt_names_its_sockets(monkeypatch, uri, found):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert list(map(str, factory.socket_paths(uri))) == found


def test_the_session_of_a_user_without_a_runtime_folder_is_in_the_cache(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/ann")
    assert str(factory.socket_paths("qemu:///session")[0]) == "/home/ann/.cache/libvirt/libvirt-sock"


def test_libvirt_without_its_python_library_is_refused_and_the_library_named(load, tmp_path, monkeypatch):
    class Missing:
        @staticmethod
        def find_spec(name, path, target=None):
            if name == "libvirt":
                raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.delitem(sys.modules, "libvirt", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    with pytest.raises(DriverError, match="cannot be used: No module named 'libvirt'"):
        factory.open_driver("libvirt", load(""), tmp_path / "guests", DriverLock("me"))


def test_the_uri_of_libvirtd_is_an_option(load):
    assert load("").libvirt.uri == "qemu:///system"
    assert load("[libvirt]\nuri = qemu:///session\n").libvirt.uri == "qemu:///session"


def test_containers_of_two_engines_and_services_are_opened_together(load, tmp_path):
    pytest.importorskip("jeepney", reason="needs jeepney, of the extra systemd")
    conf = load(
        f"[podman]\nsocket = {tmp_path}/podman\n[docker]\nsocket = {tmp_path}/docker\n"
        f"[systemd]\nbus_socket = {tmp_path}/bus\n[DEFAULT]\nlock_path = {tmp_path}/locks\n"
    )
    names = ("systemd", "podman", "docker")
    driver = factory.open_drivers(
        conf, tmp_path / "guests", {name: factory.lock_for(name, conf, "test") for name in names}
    )
    assert driver.awaited_drivers == set(names)
    assert "Docker at" in driver.outage_reasons()["docker"]
    drivers = factory.foreign_drivers(driver)
    services = drivers["systemd"]
    assert isinstance(services, SystemdDriver)
    assert [one.settle_seconds for one in drivers.values()] == [factory.SETTLE_SECONDS, 0.0, 0.0]
    assert all(drivers[name].announce_start == services.leave_service for name in ("podman", "docker"))
    driver.close()
