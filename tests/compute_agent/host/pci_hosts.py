"""The PCI devices of well-known kinds of hosts, as their kernels show them."""

from compute_agent.host.pci_devices import PciDevice

GPU = ("10de", "2330", 0x030200)
NIC = ("15b3", "1021", 0x020700)


def device(path: str, kind: tuple[str, str, int], node: int | None) -> PciDevice:
    """A device by its path of PCI addresses, such as ``pci0000:80/0000:80:01.0/0000:81:00.0``."""
    root_complex, *bridges, address = path.split("/")
    vendor, product, code = kind
    return PciDevice(
        address, vendor, product, code, node, bridges=tuple(bridges), root_complex=root_complex, iommu_group=1
    )


def switched_host(gpus: int, nodes: int = 2, per_switch: int = 2) -> list[PciDevice]:
    """A host with PCI switches, each with GPUs and a NIC below it. Each root complex has one switch."""
    found = []
    switches = gpus // per_switch
    for number in range(switches):
        node = number * nodes // switches
        bus = 0x10 * (number + 1)
        port = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        for slot in range(per_switch + 1):
            down = f"0000:{bus + 2:02x}:{slot:02x}.0"
            kind = NIC if slot == per_switch else GPU
            found.append(device(f"{port}/{down}/0000:{bus + 3 + slot:02x}:00.0", kind, node))
    return found


def superchip_host() -> list[PciDevice]:
    """A host like a GB200: four GPUs are on NUMA nodes of their own memory, which have no CPUs. Each has its
    own PCI domain.
    """
    return [
        device(f"pci{number:04x}:00/{number:04x}:00:00.0/{number:04x}:01:00.0", GPU, 2 + number * 8)
        for number in range(4)
    ]


def clustered_host() -> list[PciDevice]:
    """A host with two sockets of two NUMA nodes each (sub-NUMA clustering), a GPU for each node, and a NIC
    for each socket.
    """
    gpus = [
        device(f"pci0000:{16 * n:02x}/0000:{16 * n:02x}:01.0/0000:{16 * n + 1:02x}:00.0", GPU, n)
        for n in range(1, 4)
    ]
    return [
        device("pci0000:00/0000:00:01.0/0000:01:00.0", GPU, 0),
        device("pci0000:00/0000:00:02.0/0000:02:00.0", NIC, 0),
        *gpus,
        device("pci0000:20/0000:20:02.0/0000:22:00.0", NIC, 2),
    ]
