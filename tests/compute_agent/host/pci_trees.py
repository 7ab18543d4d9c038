"""Writes made-up trees of /sys with PCI devices, as the kernel arranges them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FakeDevice:
    """A PCI device below bridges. ``path`` has the addresses of the bridges, the root port first, and its own
    address.
    """

    path: tuple[str, ...]
    vendor: str = "10de"
    product: str = "2331"
    class_code: str = "030200"
    node: int | None = 0
    virtual: tuple[str, ...] = ()
    max_virtual: int = 0
    iommu_group: int | None = 1
    width: int = 16

    @property
    def address(self) -> str:
        """The address of the device itself."""
        return self.path[-1]


def make_pci_tree(root: Path, devices: list[FakeDevice]) -> Path:
    """Write the files of the devices, and of all other bridges that the devices name, below ``root``."""
    listed = {device.address for device in devices}
    for device in devices:
        for count in range(1, len(device.path)):
            bridge = device.path[:count]
            if bridge[-1] not in listed:
                listed.add(bridge[-1])
                _write(root, FakeDevice(bridge, "8086", "a000", "060400", node=None))
        _write(root, device)
    by_address = {device.address: device for device in devices}
    for device in devices:
        for number, address in enumerate(device.virtual):
            _link(root, device, f"virtfn{number}", _folder(root, by_address[address]))
            _link(root, by_address[address], "physfn", _folder(root, device))
    return root


def _folder(root: Path, device: FakeDevice) -> Path:
    domain, bus, _ = device.path[0].split(":")
    return root.joinpath("sys/devices", f"pci{domain}:{bus}", *device.path)


def _link(root: Path, device: FakeDevice, name: str, target: Path) -> None:
    # Relative, as the kernel's: the tree may be moved.
    (_folder(root, device) / name).symlink_to(f"../{target.name}")


def _write(root: Path, device: FakeDevice) -> None:
    folder = _folder(root, device)
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "vendor": f"0x{device.vendor}",
        "device": f"0x{device.product}",
        "class": f"0x{device.class_code}",
        "numa_node": "-1" if device.node is None else str(device.node),
        "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe",
        "current_link_width": str(device.width),
        "max_link_width": "16",
    }
    if device.max_virtual:
        files["sriov_totalvfs"] = str(device.max_virtual)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    if device.iommu_group is not None:
        (folder / "iommu_group").symlink_to(f"/sys/kernel/iommu_groups/{device.iommu_group}")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    relative = folder.relative_to(root / "sys")
    (bus / device.address).symlink_to(Path("../../..") / relative)
