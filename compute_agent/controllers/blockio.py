"""Controller ``blockio``: what a guest gets of block devices, by its class of block I/O.

A class is a section ``[blockio_class:NAME]``; a guest names one (``guest run --blockio-class``, metadata of a
domain). One without a class has what the kernel gives everybody, and what somebody else has set stays. While
the watermarks hold a guest down, it has a part of its class: of its weight, and of its rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from compute_agent.controllers.base import GuestController, GuestTarget, ReleaseItem, items_by_guest
from compute_agent.drivers.base import BlockIoTuning
from compute_agent.host.block_devices import BlockDevices
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BLOCKIO, GUEST_DISKS, BlockIo, BlockIoClass, ThrottleControl


class BlockIoController(GuestController):
    """Sets weights, rates and latencies through the driver."""

    name = "blockio"

    def __init__(
        self,
        driver: BlockIoTuning,
        classes: Mapping[str, BlockIoClass],
        read_devices: Callable[[], BlockDevices],
    ) -> None:
        """``read_devices`` tells the block devices of the host as they are now."""
        self._driver = driver
        self._classes = classes
        self._read_devices = read_devices
        self._devices = BlockDevices()
        self._resolved: Mapping[str, BlockIo] = {}
        self.refused: Mapping[str, Sequence[str]] = {}
        self._read_classes()

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Look which devices there are, and who does not get all of its class."""
        self._read_classes()
        found = {target.guest.uuid: self._missing_parts(target) for target in targets}
        self.refused = {uuid: reasons for uuid, reasons in found.items() if reasons}

    def _read_classes(self) -> None:
        if self._classes:
            self._devices = self._read_devices()
        self._resolved = {name: resolve(one, self._devices) for name, one in self._classes.items()}

    def drifted(self, target: GuestTarget) -> str | None:
        """What the guest has instead; None if it has what it should have."""
        return self._driver.blockio_drift(target.guest, self._wanted_blockio(target)) or None

    def apply(self, target: GuestTarget) -> bool:
        """Set what differs. True if anything did."""
        wanted = self._wanted_blockio(target)
        limited = wanted if ThrottleControl(BLOCKIO) in target.limits else None
        if limited is not None and not (limited.rates and limited.devices):
            reasons = self._driver.blockio_missing(target.guest, BlockIo(limited.weight))
            if reasons:  # without rates it is held down by its weight alone
                raise DriverError(f"guest {target.guest} cannot be limited: {'; '.join(reasons)}")
        return self._driver.apply_blockio(target.guest, wanted)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """Weights, rates and latencies, as far as they are the agent's."""

        def of_guest(guest: Guest) -> Iterator[ReleaseItem]:
            if has := self._driver.blockio_drift(guest, None):
                give_back = partial(self._driver.apply_blockio, guest, None)
                yield ReleaseItem("block I/O", str(guest), has, give_back)

        return items_by_guest(guests, "block I/O", of_guest)

    def _wanted_blockio(self, target: GuestTarget) -> BlockIo | None:
        wanted = self._resolved.get(target.guest.settings.blockio_class)
        percent = target.limits.get(ThrottleControl(BLOCKIO))
        return wanted if percent is None else (wanted or BlockIo()).scaled_limits(percent)

    def _missing_parts(self, target: GuestTarget) -> list[str]:
        """Why a guest does not get all of its class."""
        name = target.guest.settings.blockio_class
        if not name:
            return []
        one = self._classes.get(name)
        if one is None:
            known = ", ".join(sorted(self._classes)) or "none"
            return [f"there is no section [blockio_class:{name}]; there are {known}"]
        reasons = self._devices.describe_unmatched(one.host_devices)
        try:
            return [*reasons, *self._driver.blockio_missing(target.guest, self._resolved[name])]
        except GuestGoneError:
            return []


def resolve(one: BlockIoClass, devices: BlockDevices) -> BlockIo:
    """What a class means on a host with these devices."""
    named = {device.number for pattern in one.devices for device in devices.match_devices(pattern)}
    own = GUEST_DISKS in one.devices
    return BlockIo(one.weight, one.rates, one.latency_us, frozenset(named), own)
