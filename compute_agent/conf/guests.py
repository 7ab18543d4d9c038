"""Section ``[guests]``: the driver of guests, their defaults, and comparisons with the kernel."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.duration import DurationType
from compute_agent.model.guest_settings import LATENCY_SENSITIVE

FLAVOR_SETTINGS: Final = (
    "qos_class",
    "priority",
    "blockio_class",
    "cpu_class",
    "isolation",
    "memory_type",
    "spread",
    "resctrl",
)
"""Default of the settings that a flavor may choose."""

IMAGE_SETTINGS: Final = ("hw_cpu_thread_policy", "hw_emulator_threads_policy")
"""Default of the image properties that apply. Tenants make images, so only harmless ones are among them."""

GUESTS_OPTS: Final = [
    cfg.StrOpt(
        "driver",
        choices=[
            ("libvirt", "QEMU domains of the libvirtd on this host"),
            ("process", "plain processes, started by the agent or adopted"),
        ],
        help="Kind of the guests on this host. Without a value the agent keeps the kind of its last start."
        " At its first start it takes libvirt if libvirt-python is installed and the socket of [libvirt]"
        " uri exists, else process. It changes from process to libvirt at a start with libvirtd and without"
        " running process guests. Any other change needs this option and a restart.",
    ),
    cfg.StrOpt(
        "unallocated",
        default="shared",
        choices=[("shared", "they go to the shared CPUs"), ("ignore", "they are left where they are")],
        help="Place of guests without an allocation on this host. They are reported in both cases.",
    ),
    cfg.StrOpt(
        "unplaced",
        default="shared",
        choices=[
            ("shared", "they run on the shared CPUs, or where there are none on CPUs that no guest holds"),
            ("refuse", "the same, but one that starts and has no place is stopped at once"),
        ],
        help="Place of guests without CPUs: over-allocated ones, and on hosts without cpu_shared_set those"
        " without an allocation. They never run on CPUs that another guest holds, unless guests hold all CPUs"
        " of the host. Guests that already run are never stopped.",
    ),
    cfg.StrOpt(
        "default_qos_class",
        default=LATENCY_SENSITIVE,
        help="Class of guests without another source of a class: command, metadata, flavor or rule.",
    ),
    cfg.ListOpt(
        "flavor_settings",
        default=list(FLAVOR_SETTINGS),
        help="Settings that flavors of Nova may choose, by extra specs compute_agent:SETTING, such as"
        " compute_agent:qos_class. Other extra specs of this kind have no effect, which guest show reports."
        " hw:cpu_thread_policy and hw:emulator_threads_policy always apply.",
    ),
    cfg.ListOpt(
        "image_settings",
        default=list(IMAGE_SETTINGS),
        help="Image properties that apply as settings, such as hw_cpu_thread_policy. Tenants make images: a"
        " property compute_agent_SETTING applies only if it is named here. If flavor and image have different"
        " thread policies, the flavor's applies, as in Nova.",
    ),
    cfg.BoolOpt(
        "confirm_claims",
        default=False,
        help="Whether the agent confirms expiring claims of running guests (expires_in of POST"
        " /ext/v1/claims). Otherwise it only warns, and the program that started the guest has to confirm.",
    ),
    cfg.FloatOpt(
        "stop_timeout",
        default=10.0,
        min=0.0,
        help="Seconds between the request to a guest to end and its kill.",
    ),
    cfg.FloatOpt(
        "reconcile_interval",
        default=10.0,
        min=0.1,
        help="Seconds between two comparisons of all guests with the kernel, which repair drift.",
    ),
    cfg.Opt(
        "verify_interval",
        type=DurationType(),
        default="5m",
        help="Time between two comparisons of the promises to guests with the kernel, in seconds or as 5m,"
        " 1h: CPUs, siblings, NUMA nodes, caches, bandwidth and isolation. Broken ones are events, a metric,"
        " and an attribute of the host. 0 compares only for `compute-agent guest verify`.",
    ),
    cfg.Opt(
        "log_retention",
        type=DurationType(),
        default="7d",
        help="How long the output of process guests is kept after their end: seconds, or a number with m, h,"
        " d or w. It is in guests/UUID.log in [DEFAULT] state_path.",
    ),
    cfg.IntOpt(
        "log_max_mb",
        default=512,
        min=0,
        help="Maximum size, in MB, of the output of ended process guests. Above it the oldest is removed.",
    ),
    cfg.IntOpt(
        "log_guest_mb",
        default=64,
        min=1,
        help="Maximum size, in MB, of the output of one process guest, while it runs and after its end. The"
        " agent checks it each second. Above it only the last MB stays (with 1, the last half).",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(GUESTS_OPTS, group="guests")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("guests", GUESTS_OPTS)]
