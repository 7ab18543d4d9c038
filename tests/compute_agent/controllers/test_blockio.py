"""Tests of controller blockio: guests get the weight and rates of their class of block I/O on the named
devices.
"""

from dataclasses import replace

import pytest

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.blockio import BlockIoController
from compute_agent.host.block_devices import BlockDevice, BlockDevices
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BLOCKIO, BlockIo, BlockIoClass, DeviceRates, ThrottleControl
from tests.compute_agent.fakes import FakeDriver

CPUS = frozenset({0})
RATES = DeviceRates(read_bytes=1000, write_operations=50)
CLASSES = {
    one.name: one
    for one in (
        BlockIoClass("gold", weight=400),
        BlockIoClass("slow", rates=RATES, devices=("vd*",)),
        BlockIoClass("own", rates=RATES, latency_us=500, devices=("guest", "sdz")),
    )
}
DEVICES = BlockDevices((BlockDevice("sda", "8:0"), BlockDevice("vda", "254:0"), BlockDevice("vdb", "254:16")))


class BlockioHost:
    """The controller on a host with block devices that may change."""

    def __init__(self):
        self.driver, self.devices = FakeDriver(CPUS), DEVICES
        self.controller = BlockIoController(self.driver, CLASSES, lambda: self.devices)
        self.guest = self.driver.create_guest("a", "a", GuestSettings(), ())

    def target(self, blockio_class, **limits):
        guest = replace(self.guest, settings=GuestSettings(blockio_class=blockio_class))
        return GuestTarget(
            guest, None, CPUS, None, {ThrottleControl(name): limit for name, limit in limits.items()}
        )

    def apply(self, *target, **limits):
        target = self.target(*target, **limits)
        self.controller.sync([target], ())
        changed = self.controller.apply(target)
        assert self.controller.describe_drift(target) is None
        assert not self.controller.apply(target)
        return changed


@pytest.fixture
def host():
    return BlockioHost()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gold", BlockIo(weight=400)),
        ("slow", BlockIo(rates=RATES, devices=frozenset({"254:0", "254:16"}))),
        ("own", BlockIo(rates=RATES, latency_us=500, own_disks=True)),
    ],
)
def test_a_class_means_what_it_says_on_the_devices_that_it_names(host, name, wanted):
    assert host.apply(name)
    assert host.driver.blockio["a"] == wanted
    assert host.apply("")
    assert host.driver.blockio["a"] is None


def test_a_guest_without_a_class_is_left_as_it_is(host):
    assert not host.apply("")
    assert host.driver.blockio == {}


def test_a_device_that_comes_is_limited_at_the_next_look(host):
    host.apply("slow")
    host.devices = BlockDevices((*DEVICES.devices, BlockDevice("vdc", "254:32")))
    target = host.target("slow")
    assert host.controller.describe_drift(target) is None
    host.controller.sync([target], ())
    assert host.controller.describe_drift(target)
    assert host.controller.apply(target)
    assert "254:32" in host.driver.blockio["a"].devices


def test_refusals_name_class_and_devices(host):
    host.driver.without_blockio = ["the kernel has no io.max here"]
    for name, reasons in {
        "": [],
        "gold": ["the kernel has no io.max here"],
        "own": ["this host has no device sdz; it has sda, vda, vdb", "the kernel has no io.max here"],
        "golf": ["there is no section [blockio_class:golf]; there are gold, own, slow"],
    }.items():
        host.controller.sync([host.target(name)], ())
        assert list(host.controller.refused.get("a", ())) == reasons


def test_a_throttled_guest_has_a_part_of_its_class_and_then_all_of_it_again(host):
    host.apply("slow", **{BLOCKIO: 50.0})
    assert host.driver.blockio["a"] == BlockIo(
        50, DeviceRates(500, None, None, 25), None, frozenset({"254:0", "254:16"})
    )
    host.apply("gold", **{BLOCKIO: 10.0})
    assert host.driver.blockio["a"] == BlockIo(40)
    host.apply("", **{BLOCKIO: 80.0})
    assert host.driver.blockio["a"] == BlockIo(80)
    host.apply("gold")
    assert host.driver.blockio["a"] == BlockIo(400)


def test_a_guest_that_cannot_be_throttled_is_an_error_unless_its_rates_do(host):
    host.driver.without_blockio = ["the kernel has no io.weight"]
    with pytest.raises(DriverError, match=r"cannot be limited: the kernel has no io\.weight"):
        host.apply("gold", **{BLOCKIO: 50.0})
    assert host.apply("slow", **{BLOCKIO: 50.0})


def test_a_guest_that_ended_is_gone(host):
    target = host.target("gold")
    host.driver.end(host.guest)
    host.controller.sync([target], ())
    for ask in (host.controller.describe_drift, host.controller.apply):
        with pytest.raises(GuestGoneError):
            ask(target)
