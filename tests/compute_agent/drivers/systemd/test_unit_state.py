"""The answers of systemd about one service."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.drivers.systemd.unit_state import (
    is_service_name,
    parse_service,
    parse_unit,
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
    assert unit_of_path(unit_path(name)) == (name if is_service_name(name) else "")


@pytest.mark.parametrize(
    "name", ["", "a.socket", "a@.service", "a/b.service", "a b.service", "ä.service", f"{'a' * 250}.service"]
)
def test_other_names_are_no_services(name):
    assert not is_service_name(name)


def test_a_service_is_parsed():
    found = parse_service(parse_unit(UNIT), SERVICE)
    assert (found.name, found.loaded, found.may_run, found.has_ended) == (NAME, True, True, False)
    assert found.files == (
        Path("/usr/lib/systemd/system/db@.service"),
        Path("/etc/systemd/system/db@.service.d/a.conf"),
    )
    assert (found.main_pid, found.values, found.invocation) == (7, {"CPUWeight": 50}, "0102")


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
        {"ControlGroup": ("s", "/")},
        {"ControlGroup": ("s", "/system.slice")},
        {"ControlGroup": ("s", "/../db@1.service")},
        {"ControlGroup": ("s", "db@1.service")},
        {"CPUWeight": ("s", "1")},
    ],
)
def test_an_unexpected_answer_about_a_service_is_refused(change):
    with pytest.raises(ValueError, match=r"is not|cannot"):
        parse_service(parse_unit(UNIT), {**SERVICE, **change})
