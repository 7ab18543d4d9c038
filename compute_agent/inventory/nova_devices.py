"""Finds PCI devices that nova-compute gives to guests without Placement.

Nova itself tracks the devices that its option ``[pci] device_spec`` selects. With ``report_in_placement =
false``, the default, these devices are not in Placement. Devices that the option gives a ``physical_network``
are never in Placement. If the agent offered such a device, two guests could get it. So the agent offers no
device while it cannot read all options of nova-compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oslo_config import cfg

from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.device_spec import DeviceSpec, match_devices, parse_device_specs
from compute_agent.model.messages import ConfigError, named_few

_SPECS: Final = (
    ("DEFAULT", "pci_passthrough_whitelist"),
    ("pci", "passthrough_whitelist"),
    ("pci", "device_spec"),
)
"""The sections and names of the option: two names in older configurations, and the present name."""
_REPORTS: Final = ("pci", "report_in_placement")
_TRUE: Final = frozenset({"1", "true", "on", "yes"})
_SHOWN: Final = 5
"""Maximum number of addresses that a message contains."""


@dataclass(frozen=True, slots=True)
class NovaDevices:
    """The options of the section ``[pci]`` of nova-compute.

    :ivar reports: whether nova-compute reports its devices to Placement.
    :ivar problems: messages about files and entries that could not be read; empty if all were read.
    """

    specs: tuple[DeviceSpec, ...] = ()
    reports: bool = False
    problems: tuple[str, ...] = ()


def read_nova_devices(paths: Iterable[Path]) -> NovaDevices:
    """Read the options of nova-compute from its files.

    As in oslo.config, entries for devices come from all files. Any other option has its value from the last
    file that sets the option.
    """
    texts, reports = list[str](), False
    problems = []
    for path in paths:
        sections: dict[str, dict[str, list[str]]] = {}
        try:
            cfg.ConfigParser(str(path), sections).parse()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, cfg.ParseError) as error:
            problems.append(
                f"[pci] nova_config: {path} cannot be read ({error}): let the agent read the file, or name"
                " the right one"
            )
            continue
        for section, name in _SPECS:
            texts += _written_values(sections, section, name)
        if given := _written_values(sections, *_REPORTS):
            reports = given[-1].strip().lower() in _TRUE
    specs: list[DeviceSpec] = []
    for text in texts:
        try:
            specs += parse_device_specs([text])
        except ConfigError as error:
            problems.append(
                "[pci] nova_config: the agent cannot read an entry of nova-compute, so change it there:"
                f" {error}"
            )
    return NovaDevices(tuple(specs), reports, tuple(problems))


def _written_values(
    sections: Mapping[str, Mapping[str, Sequence[str]]], section: str, name: str
) -> list[str]:
    # As in oslo.config, the name of a section is compared without regard to case.
    found = (options for written, options in sections.items() if written.lower() == section.lower())
    return [value for options in found for value in options.get(name, ())]


def without_novas(
    nova: NovaDevices, specs: Sequence[DeviceSpec], devices: Sequence[PciDevice]
) -> tuple[tuple[PciDevice, ...], tuple[str, ...]]:
    """Leave out the cards that nova-compute gives to guests without Placement.

    If some options of nova-compute could not be read, all cards are left out.

    :param specs: the entries of the agent's own option ``[pci] device_spec``.
    :return: the devices of all other cards, and messages about the cards that are left out although the
        agent's entries select them.
    """
    given = {
        device.card_address
        for device, spec in match_devices(nova.specs, devices)
        if spec.neutrons or not nova.reports
    }
    selected = {device.card_address for device, _ in match_devices(specs, devices)}
    sentences = list[str]()
    if both := sorted(selected & given):
        sentences.append(
            f"{named_few(both, _SHOWN)}: nova-compute gives them to guests without Placement, so the agent"
            " does not offer them. Set report_in_placement = true in section pci of nova.conf, or remove them"
            " from device_spec there"
        )
    if nova.problems and (unsure := sorted(selected - given)):
        sentences += nova.problems
        sentences.append(
            f"{named_few(unsure, _SHOWN)}: nova-compute may give them to guests, so the agent does not offer"
            " them until it can read all these options and is reloaded. If nova-compute gives no devices to"
            " guests, set an empty [pci] nova_config"
        )
        given |= selected
    left = tuple(device for device in devices if device.card_address not in given)
    return left, tuple(sentences)
