"""The PCI devices of the host, from /sys/bus/pci/devices, and the kernel's events about them.

The file format is that of Documentation/ABI/testing/sysfs-bus-pci of the kernel. The real path of a device's
folder shows the path from the root complex through bridges and switches:
``devices/pci0000:80/0000:80:02.0/0000:81:00.0``.

Events come from a netlink socket (``NETLINK_KOBJECT_UEVENT``). A message begins with a header such as
``add@/devices/pci0000:80/0000:80:01.0``. Fields ``KEY=value`` follow, each ended by a zero byte (kernel:
lib/kobject_uevent.c). The kernel sends to group 1; udev's own events are in group 2.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compute_agent.host.kernel_files import SysFiles
from compute_agent.model.messages import printable_text

LOG = logging.getLogger(__name__)

PCI_DEVICES: Final = "sys/bus/pci/devices"
PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)

MDEV_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
"""The name of a mediated device."""

_ROOT_COMPLEX: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_IDENTITY: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})", re.ASCII)
_SPEED: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) GT/s", re.ASCII)
_BRIDGE_CLASS: Final = 0x06
_NVME_FILES: Final = ("model", "serial")
_MDEV_TYPES: Final = "mdev_supported_types"
_MAX_TYPES: Final = 100
"""Maximum number of mdev types that are read for a device. The largest GPUs have about 40."""


@dataclass(frozen=True, slots=True)
class PciLink:
    """The PCI Express link of a device. A field is None if the kernel does not show it.

    :ivar speed: the present speed in GT/s.
    :ivar width: the present number of lanes.
    :ivar max_speed: the highest speed of the device in GT/s.
    :ivar max_width: the highest number of lanes that the device supports.
    """

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None

    @property
    def share(self) -> float | None:
        """The present bandwidth divided by the device's highest bandwidth, from 0 to 1; None if unknown."""
        if not (self.speed and self.width and self.max_speed and self.max_width):
            return None
        return min(1.0, self.speed * self.width / (self.max_speed * self.max_width))

    def __str__(self) -> str:
        """A text about the link, such as ``16 GT/s x8 of 32 GT/s x16``; empty if the kernel shows none."""
        if self.share is None:
            return ""
        now, most = f"{self.speed:g} GT/s x{self.width}", f"{self.max_speed:g} GT/s x{self.max_width}"
        return now if now == most else f"{now} of {most}"

    @property
    def is_degraded(self) -> bool:
        """Whether the link has fewer lanes than possible; a low speed saves power, and does not count."""
        # A width of 0 means that the link is down, or that the device is a virtual function without a link of
        # its own.
        return bool(self.width and self.max_width and self.width < self.max_width)


@dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated devices that a device can make (Documentation/driver-api/vfio-mediated-device.rst).

    :ivar available: the number of devices of this type that can still be made.
    :ivar devices: the uuids of the existing devices.
    """

    id: str
    name: str = ""
    available: int = 0
    devices: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The number of devices of the type: existing devices, and devices that can still be made."""
        return self.available + len(self.devices)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A function of a PCI device.

    :ivar address: the PCI address ``DDDD:BB:SS.F`` in lower case.
    :ivar vendor_id: the vendor as four hexadecimal digits in lower case.
    :ivar product_id: the product as four hexadecimal digits in lower case.
    :ivar class_code: the base class, subclass and interface in one number, such as 0x030200 for a 3D
        controller.
    :ivar numa_node: the NUMA node that the kernel shows for the device, or else for its physical function or
        nearest bridge; None if no file shows a node. The agent does not guess, because a wrong node would
        make guests slow.
    :ivar physical_function: the address of the physical function that a virtual function belongs to.
    :ivar max_virtual: the highest number of virtual functions that a physical function can have.
    :ivar bridges: the addresses of the bridges above the device, the root port first.
    :ivar root_complex: the name of the root complex, such as ``pci0000:80``; empty if the path does not show
        it.
    :ivar iommu_group: the number of the IOMMU group; None means that the IOMMU is off, and no guest can have
        the device.
    :ivar driver: the name of the kernel's driver; empty if no driver is bound.
    :ivar vgpu_type: the number of a virtual function's vGPU type, from NVIDIA's driver; 0 if the function has
        no type yet. None means that the driver has no such file.
    :ivar model: the model and serial number of an NVMe controller; empty for other devices.
    """

    address: str
    vendor_id: str
    product_id: str
    class_code: int = 0
    numa_node: int | None = None
    physical_function: str | None = None
    max_virtual: int = 0
    bridges: tuple[str, ...] = ()
    root_complex: str = ""
    iommu_group: int | None = None
    driver: str = ""
    link: PciLink = PciLink()
    mdev_types: tuple[MdevType, ...] = ()
    vgpu_type: int | None = None
    model: str = ""

    @property
    def card_address(self) -> str:
        """The address of the physical function of a virtual function; else the device's own address."""
        return self.physical_function or self.address

    @property
    def path(self) -> tuple[str, ...]:
        """The root complex and the bridges above the device; empty if sysfs does not show them."""
        return (self.root_complex, *self.bridges) if self.root_complex else ()

    @property
    def is_bridge(self) -> bool:
        """Whether the device is a bridge or switch, which no guest can have."""
        return self.class_code >> 16 == _BRIDGE_CLASS

    @property
    def is_virtual(self) -> bool:
        """Whether the device is a virtual function (SR-IOV)."""
        return self.physical_function is not None

    @property
    def is_physical(self) -> bool:
        """Whether the device can have virtual functions (SR-IOV)."""
        return self.max_virtual > 0


def read_pci_devices(root: Path) -> tuple[PciDevice, ...]:
    """Read the PCI devices, ordered by address; leave out devices without a readable vendor or product."""
    return _read_all(root, _read_device)


def read_lasting_facts(root: Path) -> tuple[PciDevice, ...]:
    """Read the PCI devices, but leave out facts that change when a guest gets or returns a device.

    The function does not read links, and reads only the ids of mdev types. For the other facts, the kernel
    may have to wait for the device or its driver.
    """
    return _read_all(root, _read_lasting)


def _read_all(root: Path, read_device: Callable[[SysFiles, str], PciDevice | None]) -> tuple[PciDevice, ...]:
    files = SysFiles(root)
    addresses = [name for name in files.list_names(PCI_DEVICES) if PCI_ADDRESS.fullmatch(name)]
    found = [device for address in addresses if (device := read_device(files, address)) is not None]
    return _with_nodes_of_bridges(found)


def read_pci_device(root: Path, address: str) -> PciDevice | None:
    """Read one device; None if it is gone. A missing NUMA node is not taken from its bridges."""
    return _read_device(SysFiles(root), address)


def read_pci_link(root: Path, address: str) -> PciLink:
    """Read the link of a device. If the device is gone, all fields are None."""
    return _read_link(SysFiles(root), address)


def pci_addresses(root: Path) -> tuple[str, ...]:
    """The addresses of the present PCI devices. Each round calls this, because it lists only one folder."""
    return tuple(SysFiles(root).list_names(PCI_DEVICES))


def _read_device(files: SysFiles, address: str) -> PciDevice | None:
    device, folder = _read_lasting(files, address), f"{PCI_DEVICES}/{address}"
    if device is None:
        return None
    return replace(
        device,
        driver=printable_text(_link_name(files, f"{folder}/driver")),
        link=_read_link(files, address),
        mdev_types=tuple(_read_mdev_types(files, folder)),
        # The driver of an NVMe controller shows its model. When a guest gets the controller, that driver is
        # unbound.
        model=_read_model(files, f"{folder}/nvme"),
    )


def _read_link(files: SysFiles, address: str) -> PciLink:
    folder = f"{PCI_DEVICES}/{address}"
    return PciLink(
        _read_speed(files, f"{folder}/current_link_speed"),
        files.read_number(f"{folder}/current_link_width"),
        _read_speed(files, f"{folder}/max_link_speed"),
        files.read_number(f"{folder}/max_link_width"),
    )


def _read_lasting(files: SysFiles, address: str) -> PciDevice | None:
    folder = f"{PCI_DEVICES}/{address}"
    vendor, product = _read_hex(files, f"{folder}/vendor"), _read_hex(files, f"{folder}/device")
    if vendor is None or product is None:
        return None
    complex_name, bridges = _path_above(files.root / folder, address)
    group = _link_name(files, f"{folder}/iommu_group")
    return PciDevice(
        address=address,
        vendor_id=f"{vendor:04x}",
        product_id=f"{product:04x}",
        class_code=_read_hex(files, f"{folder}/class") or 0,
        numa_node=_read_node(files, folder),
        physical_function=_link_target(files, f"{folder}/physfn"),
        max_virtual=max(0, files.read_number(f"{folder}/sriov_totalvfs") or 0),
        bridges=bridges,
        root_complex=complex_name,
        iommu_group=int(group) if group.isascii() and group.isdigit() else None,
        # Only the names in the driver's folder of types are read, which does not wait for the driver.
        mdev_types=tuple(MdevType(printable_text(name)) for name in _type_names(files, folder)),
        vgpu_type=files.read_number(f"{folder}/nvidia/current_vgpu_type"),
    )


def _type_names(files: SysFiles, folder: str) -> list[str]:
    return files.list_names(f"{folder}/{_MDEV_TYPES}")[:_MAX_TYPES]


def _read_mdev_types(files: SysFiles, device: str) -> Iterable[MdevType]:
    folder = f"{device}/{_MDEV_TYPES}"
    for name in _type_names(files, device):
        text = printable_text(files.text(f"{folder}/{name}/name") or "")
        available = files.read_number(f"{folder}/{name}/available_instances") or 0
        made = (each for each in files.list_names(f"{folder}/{name}/devices") if MDEV_UUID.fullmatch(each))
        yield MdevType(printable_text(name), text, max(0, available), tuple(made))


def _read_model(files: SysFiles, folder: str) -> str:
    """The model and serial number of a device's NVMe controller; empty if there is no such controller."""
    controllers = files.list_names(folder)[:1]
    parts = (files.text(f"{folder}/{name}/{each}") or "" for name in controllers for each in _NVME_FILES)
    return printable_text(" ".join(" ".join(parts).split()))


def _read_node(files: SysFiles, folder: str) -> int | None:
    """The NUMA node of a device; None for -1, which means that the firmware names no node."""
    node = files.read_number(f"{folder}/numa_node")
    return None if node is None or node < 0 else node


def _read_hex(files: SysFiles, path: str) -> int | None:
    text = files.text(path)
    match = _IDENTITY.fullmatch(text) if text else None
    return None if match is None else int(match[1], 16)


def _read_speed(files: SysFiles, path: str) -> float | None:
    """The speed of a link in GT/s; None for "Unknown speed"."""
    match = _SPEED.match(files.text(path) or "")
    return None if match is None else float(match[1])


def _link_name(files: SysFiles, path: str) -> str:
    return os.path.basename(files.read_link(path) or "")


def _link_target(files: SysFiles, path: str) -> str | None:
    """The PCI address that a symbolic link points to; None if there is no such link."""
    name = _link_name(files, path)
    return name if PCI_ADDRESS.fullmatch(name) else None


def _path_above(path: Path, address: str) -> tuple[str, tuple[str, ...]]:
    """The root complex and the bridges in the real path of a device's folder."""
    parts = Path(os.path.realpath(path)).parts
    # Only names below the last root complex count, because a captured tree can be in a folder of any name.
    start = max((i for i, part in enumerate(parts) if _ROOT_COMPLEX.fullmatch(part)), default=None)
    if start is None:
        return "", ()
    above = (part for part in parts[start + 1 :] if part != address and PCI_ADDRESS.fullmatch(part))
    return parts[start], tuple(above)


def _with_nodes_of_bridges(devices: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """Give each device without a NUMA node the node of its physical function or nearest bridge."""
    by_address = {device.address: device for device in devices}

    def node_of(device: PciDevice) -> int | None:
        nearest = (device.physical_function, *reversed(device.bridges))
        near = (by_address[one] for one in nearest if one in by_address)
        return next((one.numa_node for one in near if one.numa_node is not None), None)

    return tuple(
        device if device.numa_node is not None else replace(device, numa_node=node_of(device))
        for device in by_address.values()
    )


_KOBJECT_UEVENT: Final = 15
"""``NETLINK_KOBJECT_UEVENT`` of linux/netlink.h, for which Python has no name."""
_KERNEL_GROUP: Final = 1
_KERNEL_PORT: Final = 0
_MAX_BYTES: Final = 8192
"""The size of the buffer for a message in bytes; the kernel's UEVENT_BUFFER_SIZE is 2048."""
_MAX_READ: Final = 4096
"""Maximum number of events that one call reads, so that a storm of events does not delay the reader."""
_OF_PCI: Final = b"SUBSYSTEM=pci"


class PciEvents:
    """Counts events about PCI devices, for one thread. Without a socket no events are counted."""

    def __init__(self, open_socket: Callable[[], socket.socket | None] | None = None) -> None:
        """Open the socket.

        :param open_socket: returns a socket that does not block, or None; by default the kernel's netlink
            socket.
        """
        self._socket = (open_socket or _open_socket)()
        self._count = 0

    def count_events(self) -> int:
        """Read all waiting events; return the number of events since the start, lost events as one."""
        for _ in range(_MAX_READ if self._socket is not None else 0):
            try:
                found = self._read_event()
            except BlockingIOError:
                break
            except OSError as error:
                self._count += 1
                # ENOBUFS: the kernel drops events when the buffer of the socket is full. Reading continues
                # after ENOBUFS; any other error ends it.
                if error.errno != errno.ENOBUFS:
                    LOG.warning(
                        "The agent cannot read events of devices any more, and polls devices instead: %s",
                        error,
                    )
                    self.close()
                    break
            else:
                self._count += found
        return self._count

    def _read_event(self) -> bool:
        """Read one event, and return whether it is about a PCI device.

        :raises OSError: no event waits, or the socket fails.
        """
        # This line is for the type checker: count_events() calls this only if there is a socket.
        assert self._socket is not None
        content, sender = self._socket.recvfrom(_MAX_BYTES)
        return is_pci_event(content, sender[0])

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def is_pci_event(content: bytes, port: int) -> bool:
    """Whether a message is an event of the kernel about a PCI device.

    :param port: the netlink port of the sender; 0 is the kernel. The port is checked, because any process
        with privileges can send to the group.
    """
    return port == _KERNEL_PORT and _OF_PCI in content.split(b"\0")


def _open_socket() -> socket.socket | None:
    found = None
    try:
        found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
        found.setblocking(False)
        found.bind((0, _KERNEL_GROUP))
    except OSError as error:
        LOG.info("The kernel reports no events of devices, so the agent polls devices: %s", error)
        if found is not None:
            found.close()
        return None
    return found
