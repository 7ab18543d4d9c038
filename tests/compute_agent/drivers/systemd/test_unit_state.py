"""The answers of systemd about one unit."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.foreign.table import UnfitSubjectError
from compute_agent.drivers.systemd.unit_state import (
    outer_units,
    parse_group,
    parse_unit,
    refuse_unit,
    unit_kind,
    unit_of_path,
    unit_path,
)

NAME = "db@1.service"
UNIT = {
    "Id": ("s", NAME),
    "LoadState": ("s", "loaded"),
    "ActiveState": ("s", "active"),
    "FragmentPath": ("s", "/usr/lib/systemd/system/db@.service"),
    "DropInPaths": ("as", ["/etc/systemd/system/db@.service.d/a.conf"]),
    "InvocationID": ("ay", b"\1\2"),
}
SERVICE = {
    "MainPID": ("u", 7),
    "ControlGroup": ("s", "/system.slice/system-db.slice/db@1.service"),
    "CPUWeight": ("t", 50),
}


def test_the_path_of_an_object_is_that_of_systemd():
    assert unit_path("db-1.service") == "/org/freedesktop/systemd1/unit/db_2d1_2eservice"
    assert unit_path("1.service").endswith("/_31_2eservice")
    assert unit_of_path("/org/freedesktop/systemd1/unit/dev_2dsda_2edevice") == ""
    assert unit_of_path("/org/freedesktop/systemd1") == ""


@given(st.from_regex(r"[A-Za-z0-9:_.@\\-]{1,60}", fullmatch=True).map(lambda it: f"{it}.service"))
def test_a_name_is_found_again_in_its_path(name):
    assert unit_of_path(unit_path(name)) == (name if unit_kind(name) else "")


@pytest.mark.parametrize(
    "name", ["", "a.socket", "a@.service", "a/b.service", "a b.service", "ä.service", f"{'a' * 250}.service"]
)
def test_other_names_are_no_units(name):
    assert unit_kind(name) == ""


@pytest.mark.parametrize("name", ["a.service", "a@1.service", "session-1.scope", "-.slice", "a-b.slice"])
def test_services_scopes_and_slices_are_units(name):
    assert unit_kind(name) == name.rpartition(".")[2]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("-.slice", "all processes of the host"),
        ("init.scope", "systemd itself"),
        ("system.slice", "services of the host"),
        ("user.slice", "sessions"),
        ("machine.slice", "domains and containers"),
        (r"machine-qemu\x2d1\x2da.scope", "driver libvirt"),
        (f"libpod-{'0' * 64}.scope", "driver podman"),
        (f"machine-libpod_pod_{'0' * 64}.slice", "driver podman"),
        (f"docker-{'0' * 64}.scope", "driver docker"),
    ],
)
def test_units_of_the_host_and_of_other_drivers_are_refused(name, reason):
    with pytest.raises(UnfitSubjectError, match=reason):
        refuse_unit(name)


@pytest.mark.parametrize("name", ["app.slice", "user-1000.slice", "session-1.scope", "system-getty.slice"])
def test_other_units_are_not_refused(name):
    refuse_unit(name)


def test_the_units_around_a_group_are_named():
    assert outer_units("/a.slice") == []
    assert [name for name in outer_units("/a.slice/a-b.slice/_cpu.service") if name[0] == "a"] == [
        *["a.slice"] * 2,
        *["a-b.slice"] * 2,
    ]
    assert "cpu.slice" in outer_units("/_cpu.slice/a.service")


@pytest.mark.parametrize("name", ["app-db.slice", "run-1.scope"])
def test_a_scope_and_a_slice_have_no_main_process(name):
    unit = parse_unit({**UNIT, "Id": ("s", name), "FragmentPath": ("s", "")})
    found = parse_group(unit, {"ControlGroup": ("s", f"/app.slice/{name}"), "CPUWeight": ("t", 50)})
    assert found.main_pid == 0


def test_a_service_is_parsed():
    found = parse_group(parse_unit(UNIT), SERVICE)
    assert (found.name, found.loaded, found.may_run, found.has_ended) == (NAME, True, True, False)
    assert found.files == (
        Path("/usr/lib/systemd/system/db@.service"),
        Path("/etc/systemd/system/db@.service.d/a.conf"),
    )
    assert (found.main_pid, found.invocation) == (7, "0102")


@pytest.mark.parametrize(
    ("active", "load", "runs", "ended"),
    [
        ("activating", "loaded", True, False),
        ("deactivating", "loaded", True, False),
        ("inactive", "loaded", False, True),
        ("failed", "loaded", False, True),
        ("inactive", "not-found", False, True),
    ],
)
def test_a_service_between_two_runs_has_not_ended(active, load, runs, ended):
    found = parse_unit({**UNIT, "ActiveState": ("s", active), "LoadState": ("s", load)})
    assert (found.may_run, found.has_ended) == (runs, ended)


@pytest.mark.parametrize(
    "change",
    [
        {"Id": ("s", "../../etc/passwd")},
        {"Id": ("u", 1)},
        {"ActiveState": None},
        {"FragmentPath": ("s", "relative.service")},
        {"DropInPaths": ("s", "x")},
        {"DropInPaths": ("as", ["/x"] * 1001)},
        {"DropInPaths": ("as", ["/x\0y"])},
        {"InvocationID": ("s", "x")},
    ],
)
def test_an_unexpected_answer_about_a_unit_is_refused(change):
    properties = {name: value for name, value in {**UNIT, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=r"is not|cannot"):
        parse_unit(properties)


@pytest.mark.parametrize(
    "change",
    [
        {"MainPID": ("s", "1")},
        {"MainPID": ("", 0)},
        {"ControlGroup": ("s", "/")},
        {"ControlGroup": ("s", "/system.slice")},
        {"ControlGroup": ("s", "/../db@1.service")},
        {"ControlGroup": ("s", "db@1.service")},
        {"CPUWeight": ("s", "1")},
    ],
)
def test_an_unexpected_answer_about_a_service_is_refused(change):
    with pytest.raises(ValueError, match=r"is not|cannot"):
        parse_group(parse_unit(UNIT), {**SERVICE, **change})
