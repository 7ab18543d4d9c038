"""Finds switches and root complexes that several cards share. Pure functions.

Two devices below one PCIe switch exchange data without the root complex. The *junction* of two devices is the
last bridge or root complex that their paths have in common. A junction with devices of at least two cards
below it gets a provider, if it is the nearest junction of any device. Functions of one card share the port of
the card, which is no junction.

An example: a GPU has the path ``pci0000:80/80:01.0/81:00.0/82:00.0``, a NIC
``pci0000:80/80:01.0/81:00.0/82:01.0``, and another NIC ``pci0000:80/80:02.0``. The junction of the first two
devices is the switch ``81:00.0``. The junction of the third device with each of them is ``pci0000:80``, and
the switch is below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Path = tuple[str, ...]
"""The path to a PCI device or bridge: the root complex and the bridges below it, from the outside in."""


def junctions_of(paths: Mapping[str, Path]) -> Mapping[str, tuple[Path, ...]]:
    """The junctions in the tree above each device, by the device's address.

    The outermost junction comes first.

    :param paths: the paths of the devices, by address.
    """
    cards: dict[Path, set[str]] = {}
    for address, path in paths.items():
        for end in range(1, len(path) + 1):
            cards.setdefault(path[:end], set()).add(address.partition(".")[0])
    shared = {path for path, below in cards.items() if len(below) > 1}
    chains = {
        address: [path[:end] for end in range(1, len(path) + 1) if path[:end] in shared]
        for address, path in paths.items()
    }
    last = {chain[-1] for chain in chains.values() if chain}
    return {address: tuple(one for one in chain if one in last) for address, chain in chains.items()}


def common_junction(chains: Sequence[tuple[Path, ...]]) -> Path | None:
    """The outermost junction that all devices share; None if there is no such junction."""
    first = {chain[0] if chain else None for chain in chains}
    return first.pop() if len(first) == 1 else None
