"""What guests may have of block devices: a section ``[blockio_class:NAME]`` for each class."""

from typing import Any, Final

from oslo_config import cfg

BLOCKIO_CLASS: Final = "blockio_class:"

_RATE: Final = "a number, with K, M, G or T for powers of 1024 if wanted, such as 20M"

OPTS: Final = [
    cfg.IntOpt(
        "weight",
        min=1,
        max=10_000,
        help="What guests of the class get of a busy device beside others, whose weight is 100 (io.weight)."
        " The device has to divide by weight: by its I/O scheduler bfq, or by io.cost.qos.",
    ),
    cfg.StrOpt("read_bytes", help=f"Bytes a second read from each of the devices at the most: {_RATE}."),
    cfg.StrOpt("write_bytes", help=f"Bytes a second written to each of the devices at the most: {_RATE}."),
    cfg.StrOpt("read_operations", help="Reads a second of each of the devices at the most."),
    cfg.StrOpt("write_operations", help="Writes a second to each of the devices at the most."),
    cfg.FloatOpt(
        "latency_ms",
        min=0.001,
        help="Milliseconds that guests of the class wait for the devices; others are slowed down where it is"
        " more (io.latency, which not every kernel has).",
    ),
    cfg.ListOpt(
        "devices",
        default=[],
        help="The devices that rates and latency are about: names of /sys/block (vda), patterns of them"
        " (nvme*n1), of /dev/disk/by-id (by-id/wwn-0x5000*), or guest for the guest's own disks. A partition"
        " stands for its whole disk.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Nothing: the sections are known once the files have been read."""


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(f"{BLOCKIO_CLASS}NAME", OPTS)]
