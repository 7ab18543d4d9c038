"""Section ``[guests]``: the drivers of guests, settings from flavors and images, and intervals of checks."""

from typing import Final

from oslo_config import cfg, types

from compute_agent.conf.option_types import DurationType
from compute_agent.model.guest_settings import LATENCY_SENSITIVE, LATENCY_SENSITIVE_RESERVED, SETTING_NAMES

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
"""The default of the option ``flavor_settings``."""

IMAGE_SETTINGS: Final = ("hw_cpu_thread_policy", "hw_emulator_threads_policy")
"""The default of the option ``image_settings``. The default contains only harmless properties, because
tenants can set properties of their images.
"""


class SettingEntryType(types.String):
    """An entry ``SETTING`` or ``SETTING=VALUE`` of a list of settings. Commas in braces belong to the value.

    :class:`oslo_config.types.List` joins a part that this type refuses with the next part of the list.
    """

    def __call__(self, value: object) -> str:
        """Return the entry.

        :raises ValueError: a brace is not closed.
        """
        text = str(value)
        if text.count("{") > text.count("}"):
            raise ValueError(f"a brace in {text!r} is not closed")
        return str(super().__call__(value))


_ENTRY: Final = SettingEntryType()

GUESTS_OPTS: Final = [
    cfg.ListOpt(
        "drivers",
        item_type=types.String(choices=["libvirt", "process", "systemd", "podman", "docker"]),
        deprecated_name="driver",
        help="Kinds of guests on this host, separated by commas. The kind libvirt stands for QEMU domains of"
        " the libvirtd on this host. The kind process stands for plain processes that the agent has started"
        " or adopted. The kind systemd (experimental) stands for units with a section [X-ComputeAgent], or"
        " with a name of [systemd] guest_names, and needs the Python package jeepney. The kinds podman and"
        " docker (experimental) stand for containers that root runs, if they have the label"
        " compute-agent.guest=true, or if guest_names in [podman] or [docker] has their name. If two drivers"
        " report guests with the same uuid, the agent manages only the guest of the driver that comes first"
        " in this list. If the option is not set, the agent uses the same drivers as at its last start. At"
        " its first start the agent chooses libvirt if libvirt-python is installed and the socket of"
        " [libvirt] uri exists, else process. At a later start the agent changes from process to libvirt by"
        " itself, if libvirtd runs and there is no process guest. For any other change of drivers, set this"
        " option and restart the agent.",
    ),
    cfg.StrOpt(
        "unallocated",
        default="shared",
        choices=[
            ("shared", "the agent moves the guests to the shared CPUs"),
            ("ignore", "the guests keep their current CPUs"),
        ],
        help="CPUs on which guests run that have no allocation on this host. The agent reports such guests"
        " with either value of this option.",
    ),
    cfg.StrOpt(
        "unplaced",
        default="shared",
        choices=[
            (
                "shared",
                "the guests run on the shared CPUs, or without shared CPUs on CPUs that no guest holds",
            ),
            ("refuse", "as shared, but the agent stops such a guest at once when it starts"),
        ],
        help="Treatment of guests for which the agent finds no CPUs. This happens if Placement has allocated"
        " more CPUs than the host has. On hosts without cpu_shared_set, it also happens to guests without an"
        " allocation. Such a guest runs on the CPUs of another guest only if guests hold all CPUs of the"
        " host. The agent never stops guests that already run.",
    ),
    cfg.StrOpt(
        "default_qos_class",
        default=LATENCY_SENSITIVE,
        help="QoS class of guests that get no class from a command, metadata, a flavor or a rule.",
    ),
    cfg.ListOpt(
        "flavor_settings",
        item_type=_ENTRY,
        default=list(FLAVOR_SETTINGS),
        help="Settings of guests that flavors of Nova are allowed to choose. A flavor chooses a setting with"
        " the extra spec compute_agent:SETTING, such as compute_agent:qos_class. If this list does not"
        " contain SETTING, the agent ignores the extra spec, and `compute-agent guest show` reports it. An"
        " entry SETTING=VALUE, such as qos_class=BE, allows only this value; several such entries allow"
        " several values. Commas in braces belong to the value, such as a value of resctrl in JSON. The extra"
        " specs hw:cpu_thread_policy and hw:emulator_threads_policy always apply.",
    ),
    cfg.ListOpt(
        "label_settings",
        item_type=_ENTRY,
        default=list(SETTING_NAMES),
        help="Settings of guests that labels of containers are allowed to choose, such as qos_class for the"
        " label compute-agent.class. The entries are those of flavor_settings. The agent ignores other"
        " labels, and `compute-agent guest show` reports them. The labels compute-agent.guest, .uuid, .vcpus"
        " and .memory always apply.",
    ),
    cfg.ListOpt(
        "unit_settings",
        item_type=_ENTRY,
        default=list(SETTING_NAMES),
        help="Settings of guests that the section [X-ComputeAgent] of units of systemd is allowed to choose,"
        " such as qos_class for the key Class. The entries are those of flavor_settings. The agent ignores"
        " other keys, and `compute-agent guest show` reports them. The keys Guest, Uuid, Vcpus and Memory"
        " always apply.",
    ),
    cfg.ListOpt(
        "image_settings",
        default=list(IMAGE_SETTINGS),
        help="Image properties that the agent applies as settings, such as hw_cpu_thread_policy. Tenants can"
        " set properties of their images, so a property compute_agent_SETTING applies only if this list"
        " contains it. The thread policy of an image applies only if the flavor has no thread policy.",
    ),
    cfg.BoolOpt(
        "confirm_claims",
        default=False,
        help="Whether the agent confirms claims that expire unless they are confirmed (expires_in of POST"
        " /ext/v1/claims). The agent confirms a claim if the guest of the claim runs. If the option is false,"
        " the agent only logs a warning, and the program that started the guest has to confirm the claim.",
    ),
    cfg.BoolOpt(
        "claim",
        default=False,
        help="Whether the agent claims an allocation (POST /ext/v1/claims) for each unit and container that"
        " runs as a guest without an allocation. The claim contains CPUs, and also MEMORY_MB if the"
        " guest has a setting or a limit of its memory. The agent deletes the allocation when the guest has"
        " ended for good (see claim_grace). The agent never changes allocations that another program made.",
    ),
    cfg.StrOpt(
        "no_room",
        default="run",
        choices=[
            (
                "run",
                "the guest runs without an allocation: on the shared CPUs, unless unallocated is ignore, and"
                " with the QoS class BE until the agent gets the claim",
            ),
            ("stop", "the agent stops the guest if the guest has just started"),
        ],
        help="Treatment of a guest that does not fit on this host when the agent claims an allocation for the"
        " guest (see claim). With either value, the agent reports such guests. The agent tries the claim"
        " again after 30 seconds, and then at growing intervals of at most ten minutes.",
    ),
    cfg.ListOpt(
        "claim_dedicated",
        default=[LATENCY_SENSITIVE_RESERVED],
        help="QoS classes of the guests for which the agent claims dedicated CPUs (PCPU). For guests of other"
        " classes the agent claims VCPU.",
    ),
    cfg.Opt(
        "claim_grace",
        type=DurationType(),
        default="1m",
        help="Time between the removal of a container, or the end of a unit, and the deletion of its"
        " claim. The agent deletes the claim with its next report after this time.",
    ),
    cfg.StrOpt(
        "claim_project",
        default="",
        help="Id of the project that owns the claims of the agent. The default is the nil uuid.",
    ),
    cfg.StrOpt(
        "claim_user",
        default="",
        help="Id of the user that owns the claims of the agent. The default is the nil uuid.",
    ),
    cfg.Opt(
        "end_notice",
        type=DurationType(),
        default="10m",
        help="Time before the end of a claim at which the agent records an event. The field ends_at of POST"
        " /ext/v1/claims sets the end, and the agent records the event if the field on_end is notify or"
        " evict. With evict, the agent records the event at the latest when it asks the guest to stop. With 0"
        " the agent records no event before the end. At the end, the agent always records an event for each"
        " guest that still runs.",
    ),
    cfg.FloatOpt(
        "stop_timeout",
        default=10.0,
        min=0.0,
        help="Seconds that a guest has to end after the agent has asked it to stop. After this time the"
        " agent kills the guest.",
    ),
    cfg.FloatOpt(
        "reconcile_interval",
        default=10.0,
        min=0.1,
        help="Seconds between two comparisons of the settings of all guests with the values in the kernel. At"
        " each comparison, the agent moves threads back to their CPUs. At every third comparison, the agent"
        " also corrects the CPU masks of interrupts. At every sixth comparison, the agent also corrects"
        " limits, frequencies and block I/O that another program has changed (drift).",
    ),
    cfg.Opt(
        "verify_interval",
        type=DurationType(),
        default="5m",
        help="Time between two checks whether guests have the CPUs, sibling threads, NUMA nodes, caches,"
        " bandwidth and isolation that the agent has promised. The value is a number of seconds, or a number"
        " with a unit, such as 5m or 1h. The agent reports broken promises as events, in a metric, and in an"
        " attribute of the host. With 0 the agent checks only when `compute-agent guest verify` runs.",
    ),
    cfg.Opt(
        "log_retention",
        type=DurationType(),
        default="7d",
        help="Time for which the agent keeps the output of process guests after their end: seconds, or a"
        " number with m, h, d or w. The output is in guests/UUID.log in [DEFAULT] state_path.",
    ),
    cfg.IntOpt(
        "log_max_mb",
        default=512,
        min=0,
        help="Maximum size, in MB, of the output of all ended process guests together. Above this size the"
        " agent removes the oldest output.",
    ),
    cfg.IntOpt(
        "log_guest_mb",
        default=64,
        min=1,
        help="Maximum size, in MB, of the output of one process guest, while it runs and after its end. The"
        " agent checks the size every two seconds. Above the maximum it keeps only the last MB of the"
        " output, or the last half MB if the maximum is 1.",
    ),
]

SECTIONS: Final = {"guests": GUESTS_OPTS}
