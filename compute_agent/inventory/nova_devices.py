"""PCI devices that nova-compute gives to guests without Placement.

Nova tracks the devices of its ``[pci] device_spec`` itself. Placement does not know of them with
``report_in_placement = false``, the default, nor of devices with a ``physical_network``. If the agent offered
such a device, it would be given twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.device_spec import DeviceSpec, match_devices, parse_device_specs
from compute_agent.model.messages import ConfigError, named_few

_SECTION: Final = "pci"
_SPECS: Final = ("device_spec", "passthrough_whitelist")
"""The option, and its name in older configurations."""
_REPORTS: Final = "report_in_placement"
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_SHOWN: Final = 5
"""The most addresses that a sentence names."""


@dataclass(frozen=True, slots=True)
class NovaDevices:
    """The section ``[pci]`` of nova-compute.

    :ivar reports: whether nova-compute reports its devices to Placement.
    :ivar warnings: sentences about what could not be read.
    """

    specs: tuple[DeviceSpec, ...] = ()
    reports: bool = False
    warnings: tuple[str, ...] = ()


def read_nova_devices(paths: Iterable[Path]) -> NovaDevices:
    """Read the options of nova-compute. A missing file has none; later files override earlier ones."""
    values: dict[str, list[str]] = {}
    warnings = []
    for path in paths:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(str(path), sections).parse()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, cfg.ParseError) as error:
            warnings.append(
                f"[pci] nova_config: {path} cannot be read ({error}), so that devices of nova-compute may be"
                " given twice: let the agent read the file, or name the right one"
            )
            continue
        values |= sections.get(_SECTION, {})
    texts = next((values[name] for name in _SPECS if name in values), [])
    specs: list[DeviceSpec] = []
    for text in texts:
        try:
            specs += parse_device_specs([text])
        except ConfigError as error:
            warnings.append(f"[pci] nova_config: an entry of nova-compute is not compared: {error}")
    reports = values.get(_REPORTS, [""])[-1].strip().lower() in _TRUE
    return NovaDevices(tuple(specs), reports, tuple(warnings))


def without_novas(
    nova: NovaDevices, specs: Sequence[DeviceSpec], devices: Sequence[PciDevice]
) -> tuple[tuple[PciDevice, ...], tuple[str, ...]]:
    """Leave out the cards that nova-compute gives to guests without Placement.

    :param specs: the entries of the agent.
    :return: the devices of the other cards, and sentences about those that the agent would offer.
    """
    given = {
        _card_of(device)
        for device, spec in match_devices(nova.specs, devices)
        if spec.neutrons or not nova.reports
    }
    both = sorted({_card_of(device) for device, _ in match_devices(specs, devices)} & given)
    left = tuple(device for device in devices if _card_of(device) not in given)
    sentences = [*nova.warnings]
    if both:
        sentences.append(
            f"{named_few(both, _SHOWN)}: nova-compute gives them to guests without Placement, so the agent"
            " does not offer them. Set report_in_placement = true in section pci of nova.conf, or remove them"
            " from device_spec there"
        )
    return left, tuple(sentences)


def _card_of(device: PciDevice) -> str:
    return device.physical_function or device.address
