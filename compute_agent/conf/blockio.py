"""Block I/O of guests: a section ``[blockio_class:NAME]`` for each class."""

from typing import Final

from oslo_config import cfg

BLOCKIO_CLASS: Final = "blockio_class:"

_RATE: Final = "a number, optionally with K, M, G or T (powers of 1024), such as 20M"

OPTS: Final = [
    cfg.IntOpt(
        "weight",
        min=1,
        max=10_000,
        help="Weight of a guest of the class, relative to other guests that use the same busy device"
        " (io.weight). Without this option the weight is 100. Weights have an effect only on devices with the"
        " I/O scheduler bfq, or with io.cost.qos.",
    ),
    cfg.StrOpt(
        "read_bytes", help=f"Maximum rate of reads from each of the devices, in bytes a second: {_RATE}."
    ),
    cfg.StrOpt(
        "write_bytes", help=f"Maximum rate of writes to each of the devices, in bytes a second: {_RATE}."
    ),
    cfg.StrOpt("read_operations", help="Maximum number of reads a second from each device in devices."),
    cfg.StrOpt("write_operations", help="Maximum number of writes a second to each device in devices."),
    cfg.FloatOpt(
        "latency_ms",
        min=0.001,
        help="Target latency of the devices for guests of the class, in milliseconds. The kernel slows"
        " down other guests to reach the target (io.latency). Some kernels do not have this feature.",
    ),
    cfg.ListOpt(
        "devices",
        default=[],
        help="Devices to which rates and latency apply: names in /sys/block (vda), patterns of names"
        " (nvme*n1), or names and patterns in /dev/disk/by-id (by-id/wwn-0x5000*). The word guest means the"
        " guest's own disks. A partition stands for its whole disk.",
    ),
]

SECTIONS: Final = {f"{BLOCKIO_CLASS}NAME": OPTS}
