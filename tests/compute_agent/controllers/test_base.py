"""Tests that each controller can list its changes, and the settings that a release of the host undoes."""

import importlib
import pkgutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from compute_agent import controllers
from compute_agent.agent.configured_controllers import ControllerSettings, ControllerStores, make_controllers
from compute_agent.controllers.base import (
    GuestController,
    GuestTarget,
    HostController,
    KernelController,
    find_controller,
)
from compute_agent.controllers.isolation import IsolationController, IsolationSettings
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError
from tests.compute_agent.controllers.builders import class_target
from tests.compute_agent.fakes import FakeDriver

METHODS = ("sync", "describe_drift", "apply", "plan_changes", "release")


def classes():
    """The classes of all controllers in the package."""
    modules = [
        importlib.import_module(f"{controllers.__name__}.{module.name}")
        for module in pkgutil.iter_modules(controllers.__path__)
    ]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return sorted(
        (
            one
            for one in found - {KernelController, GuestController, HostController}
            if KernelController in one.__mro__
        ),
        key=lambda one: one.name,
    )


def test_all_controllers_are_known_to_the_test():
    assert [one.name for one in classes()] == [
        *(
            "blockio",
            "core_scheduling",
            "cpu",
            "cpu_class",
            "cpuset",
            "emulator",
            "isolation",
            "memory",
            "memory_limit",
            "realtime",
            "resctrl",
        )
    ]


@pytest.mark.parametrize("controller", classes(), ids=lambda one: one.name)
@pytest.mark.parametrize("method", METHODS)
def test_a_controller_answers_everything_that_it_is_asked(controller, method):
    assert getattr(controller, method) is not getattr(KernelController, method)


def test_one_list_makes_all_controllers():
    stores = ControllerStores(object(), object(), object(), object())
    made = make_controllers(FakeDriver([0]), object(), ControllerSettings(), stores, Path("/"))
    following = make_controllers(FakeDriver([0]), None, ControllerSettings(pins=False), stores, Path("/"))
    assert [one.name for one in following] == [
        *("emulator", "cpu", "memory_limit", "blockio", "cpu_class", "isolation"),
        *("realtime", "core_scheduling", "memory"),
    ]
    assert {type(one) for one in (*made, *following)} == set(classes())


def test_a_reload_keeps_the_cpus_that_the_agent_began_with():
    seen = []
    own_threads = SimpleNamespace(keep_off=seen.append)
    stores = ControllerStores(object(), object(), object(), object(), own_threads=own_threads)
    settings = ControllerSettings(isolation=IsolationSettings(realtime=frozenset({"RT"})))
    for _ in range(2):
        made = make_controllers(FakeDriver([0]), None, settings, stores, Path("/"))
        find_controller(made, IsolationController).apply(class_target("a", "RT", 3))
    assert seen == [{3}, {3}]


class Differing(GuestController):
    """A controller that reports differences for the guests that a test names."""

    name = "differing"

    def __init__(self, answers):
        self.answers = answers

    def describe_drift(self, target):
        if isinstance(answer := self.answers[target.guest.uuid], Exception):
            raise answer
        return answer


def test_a_plan_has_a_row_for_each_guest_that_differs_or_cannot_be_read():
    answers = {
        "a": "other CPUs",
        "b": None,
        "c": GuestGoneError("it has ended"),
        "d": DriverError("libvirtd is away"),
        "e": OSError("gone"),
    }
    guests = [Guest(uuid, "fake", uuid, 1, GuestSettings()) for uuid in reversed(answers)]
    targets = [GuestTarget(guest, None, frozenset({0})) for guest in guests]
    rows = Differing(answers).plan_changes(targets, ())
    assert [(row.where, row.subject, row.change) for row in rows] == [
        ("differing", "a", "other CPUs"),
        ("differing", "d", "cannot be done: libvirtd is away"),
        ("differing", "e", "cannot be done: gone"),
    ]
