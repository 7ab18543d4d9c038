"""Section ``[guests]``: guests that the agent looks after, and how often it compares them with the kernel."""

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
"""The settings that a flavor may choose by default."""

IMAGE_SETTINGS: Final = ("hw_cpu_thread_policy", "hw_emulator_threads_policy")
"""The properties of images that count by default."""

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
        help="What happens to guests that hold no allocation of this host. Either way they are reported.",
    ),
    cfg.StrOpt(
        "unplaced",
        default="shared",
        choices=[
            ("shared", "they run on the shared CPUs, or where there are none on CPUs that no guest holds"),
            ("refuse", "the same, but one that starts and has no place is stopped at once"),
        ],
        help="What happens to guests for which there are no CPUs: over-allocated ones, and on hosts without"
        " cpu_shared_set those without an allocation. None of them ever runs on CPUs that another guest"
        " holds, unless guests hold all CPUs of the host. Those that run already are never stopped.",
    ),
    cfg.StrOpt(
        "default_qos_class",
        default=LATENCY_SENSITIVE,
        help="Class of guests for which nothing else says one: no command, metadata, flavor or rule.",
    ),
    cfg.ListOpt(
        "flavor_settings",
        default=list(FLAVOR_SETTINGS),
        help="Settings that flavors of Nova may choose, by extra specs compute_agent:SETTING, such as"
        " compute_agent:qos_class. Other extra specs of this kind have no effect, and guest show says so."
        " hw:cpu_thread_policy and hw:emulator_threads_policy always count.",
    ),
    cfg.ListOpt(
        "image_settings",
        default=list(IMAGE_SETTINGS),
        help="Image properties that count as settings, as hw_cpu_thread_policy. Tenants make images: a"
        " property compute_agent_SETTING counts only if it is named here. Where flavor and image have"
        " different thread policies, the flavor counts, as in Nova.",
    ),
    cfg.BoolOpt(
        "confirm_claims",
        default=False,
        help="Whether the agent confirms claims of guests that run and that would expire (expires_in of POST"
        " /ext/v1/claims). Otherwise it only says that they do, and whoever started the guest has to.",
    ),
    cfg.FloatOpt(
        "stop_timeout",
        default=10.0,
        min=0.0,
        help="Seconds that a guest has to end after it was asked to, before it is killed.",
    ),
    cfg.FloatOpt(
        "reconcile_interval",
        default=10.0,
        min=0.1,
        help="Seconds between two comparisons of all guests with the kernel, in which drift is repaired.",
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
        help="Size in MB that the output of process guests that have ended may take; the oldest goes when"
        " there is more.",
    ),
    cfg.IntOpt(
        "log_guest_mb",
        default=64,
        min=1,
        help="Size in MB that the output of one process guest may take, while it runs and after its end:"
        " looked at each second, and of more only the last MB (of a smaller size, the last half) stays.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the section known to ``conf``."""
    conf.register_opts(GUESTS_OPTS, group="guests")


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options of the section, for the sample file."""
    return [("guests", GUESTS_OPTS)]
