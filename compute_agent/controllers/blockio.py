"""Controller ``blockio``: the weight and limits of each guest on block devices, by its block I/O class.

A class is a section ``[blockio_class:NAME]``, which the setting ``blockio_class`` of a guest names. A guest
without a class keeps the values of the kernel or of another program. While a watermark or interference
throttles a guest, the guest gets a percentage of the weight and rates of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    GuestController,
    GuestTarget,
    ReleaseItem,
)
from compute_agent.drivers.base import BlockIoTuning
from compute_agent.host.block_devices import BlockDevices
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import BLOCKIO, GUEST_DISKS, BlockIo, BlockIoClass, ThrottleControl


class BlockIoController(GuestController):
    """Sets weights, rates and latency targets of guests through the driver."""

    name = "blockio"
    compare_rounds = FOREIGN_ROUNDS
    release_kind = "block I/O"

    def __init__(
        self,
        driver: BlockIoTuning,
        classes: Mapping[str, BlockIoClass],
        read_devices: Callable[[], BlockDevices],
    ) -> None:
        """Read the devices that the classes match now.

        :param read_devices: reads the block devices that the host has at the moment.
        """
        self._driver = driver
        self._classes = classes
        self._read_devices = read_devices
        self._devices = BlockDevices()
        self._resolved: Mapping[str, BlockIo] = {}
        # A dry run and a release compare guests without calling sync() before.
        self._read_classes()

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Read the block devices again, and note the limits of each guest's class that cannot be set."""
        self._read_classes()
        super().sync(targets, zones)

    def _read_classes(self) -> None:
        # A host without classes saves the walk over /sys/block.
        if self._classes:
            self._devices = self._read_devices()
        self._resolved = {name: resolve_class(one, self._devices) for name, one in self._classes.items()}

    def describe_drift(self, target: GuestTarget) -> str | None:
        """A text with settings that differ from the guest's class; None if they agree."""
        return self._driver.blockio_drift(target.guest, self._wanted_blockio(target)) or None

    def apply(self, target: GuestTarget) -> bool:
        """Set the block I/O settings that differ; return whether any setting differed.

        :raises DriverError: a watermark throttles the guest, but the kernel cannot limit this guest's I/O.
        """
        wanted = self._wanted_blockio(target)
        limited = wanted if ThrottleControl(BLOCKIO) in target.limits else None
        if limited is not None and not (limited.rates and limited.devices):
            # Without rates only the weight can throttle the guest. A limit that has no effect must be an
            # error. The worker then removes the limit, and throttling does not rely on it.
            reasons = self._driver.blockio_missing(target.guest, BlockIo(limited.weight))
            if reasons:
                raise DriverError(f"guest {target.guest} cannot be limited: {'; '.join(reasons)}")
        return self._driver.apply_blockio(target.guest, wanted)

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The weights, rates and latency targets of a guest that the agent wrote."""
        if has := self._driver.blockio_drift(guest, None):
            give_back = partial(self._driver.apply_blockio, guest, None)
            yield ReleaseItem(self.release_kind, str(guest), has, give_back)

    def _wanted_blockio(self, target: GuestTarget) -> BlockIo | None:
        wanted = self._resolved.get(target.guest.settings.blockio_class)
        percent = target.limits.get(ThrottleControl(BLOCKIO))
        # For a guest without a class, a percentage refers to the kernel's default weight.
        return wanted if percent is None else (wanted or BlockIo()).scaled_limits(percent)

    def list_refusals(self, target: GuestTarget) -> Sequence[str]:
        """Messages about the limits of a guest's class that cannot be set for the guest."""
        name = target.guest.settings.blockio_class
        if not name:
            return []
        one = self._classes.get(name)
        if one is None:
            known = ", ".join(sorted(self._classes)) or "none"
            return [f"there is no section [blockio_class:{name}]; there are {known}"]
        missing = self._driver.blockio_missing(target.guest, self._resolved[name])
        return [*self._devices.describe_unmatched(one.host_devices), *missing]


def resolve_class(one: BlockIoClass, devices: BlockDevices) -> BlockIo:
    """The limits of a class, for the devices that its patterns match on this host."""
    named = {device.number for pattern in one.devices for device in devices.match_devices(pattern)}
    own = GUEST_DISKS in one.devices
    return BlockIo(one.weight, one.rates, one.latency_us, frozenset(named), own)
