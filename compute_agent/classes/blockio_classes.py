"""Classes of block I/O, read from the sections ``[blockio_class:NAME]``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.blockio import BLOCKIO_CLASS
from compute_agent.conf.qos import family_sections
from compute_agent.host.block_devices import BlockDevices
from compute_agent.model.guest_settings import class_section
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import GUEST_DISKS, BlockIoClass, DeviceRates

_RATES: Final = ("read_bytes", "write_bytes", "read_operations", "write_operations")
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_AMOUNT: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)([KMGT]?)", re.ASCII)
# The kernel stores rates as unsigned numbers of 64 bits. The largest signed number is above the rate of any
# device.
_MAX_RATE: Final = (1 << 63) - 1


def parse_blockio_classes(conf: cfg.ConfigOpts) -> dict[str, BlockIoClass]:
    """Read all classes of block I/O, by name."""
    return {name: _blockio_class(name, options) for name, options in family_sections(conf, BLOCKIO_CLASS)}


def _blockio_class(name: str, options: Any) -> BlockIoClass:
    section = class_section(BLOCKIO_CLASS, name)
    rates = DeviceRates(*(_device_rate(section, option, options[option]) for option in _RATES))
    latency = options.latency_ms
    # io.max and io.latency of the kernel have a line for each device; one weight applies to all devices.
    if (rates or latency) and not options.devices:
        raise ConfigError(
            f"{section} devices: rates and latency need devices: name some of /sys/block, such as vda or"
            f" nvme*n1, or {GUEST_DISKS}"
        )
    return BlockIoClass(
        name,
        options.weight,
        rates,
        # The kernel counts in microseconds.
        None if latency is None else round(latency * 1000),
        tuple(options.devices),
    )


def parse_rate(text: str) -> int:
    """Parse a rate: a number with an optional suffix of powers of 1024, such as ``100``, ``20M`` or ``1.5G``.

    :raises ValueError: the text is no rate.
    """
    # The pattern bounds the number of digits, because Python is slow with very long numbers.
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate: a number such as 100, 512K, 20M or 1.5G is needed")
    return int(float(match[1]) * 1024 ** _POWERS[match[2]])


def _device_rate(section: str, option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        amount = parse_rate(text)
    except ValueError as error:
        raise ConfigError(f"{section} {option}: {error}") from error
    if not 1 <= amount <= _MAX_RATE:
        raise ConfigError(
            f"{section} {option} = {text}: a rate must be at least 1; remove the option for no limit"
        )
    return amount


def blockio_warnings(classes: Mapping[str, BlockIoClass], devices: BlockDevices) -> Iterator[str]:
    """Sentences about options of classes that have no effect on a host with these devices."""
    for name, one in classes.items():
        section = f"[{BLOCKIO_CLASS}{name}]"
        # A name without a device is no error, because disks can be attached while the agent runs.
        for reason in devices.describe_unmatched(one.host_devices):
            yield f"{section} devices: {reason}"
        if one.weight is not None and not any(device.by_weight for device in devices.devices):
            yield (
                f"{section} weight has no effect: no device of this host divides by weight; choose bfq in"
                " /sys/block/NAME/queue/scheduler, or enable io.cost.qos"
            )
