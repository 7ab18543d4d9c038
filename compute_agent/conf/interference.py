"""Guests that disturb others, and the reaction: a section ``[interference:NAME]`` for each signal."""

from typing import Any, Final

from oslo_config import cfg

INTERFERENCE: Final = "interference:"

OPTS: Final = [
    cfg.StrOpt(
        "signal",
        choices=[
            ("run_delay", "share of its time that the guest waits for CPUs; others get a CPU quota"),
            ("cpu_pressure", "CPU pressure of its cgroup; others get a CPU quota"),
            ("io_pressure", "I/O pressure of its cgroup; others get less block I/O"),
            ("cpi", "cycles for each of its instructions; others get a CPU quota"),
            ("memory_bandwidth", "its CPU time for each byte of memory; others get less memory bandwidth"),
            ("llc_occupancy", "its bytes of memory for each second of CPU; others get fewer cache ways"),
        ],
        help="Signal by which a disturbed guest is found. The agent compares it with the usual value of the"
        " guest.",
    ),
    cfg.StrOpt(
        "mode",
        default="preview",
        choices=[
            ("preview", "only log, record and count the guests that would be limited"),
            ("act", "limit the suspect, and see whether that helps"),
        ],
        help="Whether the agent limits suspects.",
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
        help="Program that ends it for good: one that migrates the guilty guest, for example. Called with"
        " its uuid as the last argument, once a day at most; ended after ten minutes. Blanks separate"
        " arguments, quotes as in a shell; no shell is started. The program does not inherit the agent's OS_*"
        " environment variables.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register nothing: register_sections() of ``qos`` does, after the files have been read."""


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(f"{INTERFERENCE}NAME", OPTS)]
