"""Guests that disturb others, and the reaction: a section ``[interference:NAME]`` for each signal."""

from typing import Any, Final

from oslo_config import cfg

INTERFERENCE: Final = "interference:"

OPTS: Final = [
    cfg.StrOpt(
        "signal",
        choices=[
            ("run_delay", "the part of its time that a guest waits for CPUs; others get a CPU quota"),
            ("cpu_pressure", "the CPU pressure of its cgroup; likewise"),
            ("io_pressure", "the I/O pressure of its cgroup; others get less block I/O"),
            ("cpi", "the cycles that each of its instructions takes; others get a CPU quota"),
            ("memory_bandwidth", "its CPU time for each byte of memory; others get less memory bandwidth"),
            ("llc_occupancy", "its bytes of memory for each second of CPU; others get fewer cache ways"),
        ],
        help="Measure of disturbance. A guest is compared with its own usual value.",
    ),
    cfg.StrOpt(
        "mode",
        default="preview",
        choices=[
            ("preview", "only log, record and count the guests that would be limited"),
            ("act", "limit the suspect, and check whether that helps"),
        ],
        help="Whether guests are limited.",
    ),
    cfg.ListOpt(
        "victims",
        default=[],
        help="Classes of guests that are protected by limits of others; all if empty.",
    ),
    cfg.ListOpt(
        "consenting",
        default=[],
        help="Classes of guests that may be limited for a guest of the same class. Otherwise only guests of a"
        " lower class than the disturbed one are limited, and never one above [qos] highest_class.",
    ),
    cfg.IntOpt(
        "escalate_after",
        default=3,
        min=1,
        help="Number of verdicts within a day against one guest, for the same disturbed guest, after which"
        " escalate_command is called.",
    ),
    cfg.StrOpt(
        "escalate_command",
        help="Program that ends the disturbance, such as one that migrates the guilty guest. It is called"
        " with"
        " the uuid of that guest as the last argument, at most once a day, and ended after ten minutes."
        " Blanks"
        " separate arguments, quotes work as in a shell; no shell is started. The agent's OS_* variables are"
        " not passed on.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register nothing: register_sections() of ``qos`` does, after the files have been read."""


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(f"{INTERFERENCE}NAME", OPTS)]
