"""Frequencies and idle states of CPUs: a section ``[cpu_class:NAME]`` for each class."""

from typing import Final

from oslo_config import cfg

CPU_CLASS: Final = "cpu_class:"

_FREQUENCY: Final = (
    "a number of kHz; or min, base or turbo for the lowest, guaranteed or highest frequency of the CPU"
)

OPTS: Final = [
    cfg.StrOpt(
        "governor",
        help="Governor of cpufreq. The kernel lists the valid names in scaling_available_governors.",
    ),
    cfg.StrOpt("min_frequency", help=f"Lowest frequency: {_FREQUENCY}."),
    cfg.StrOpt("max_frequency", help=f"Highest frequency: {_FREQUENCY}."),
    cfg.StrOpt(
        "energy_performance_preference",
        help="Energy performance preference, such as performance or balance_power. The kernel lists the"
        " valid names in energy_performance_available_preferences. With the governor performance,"
        " intel_pstate and amd_pstate accept only performance.",
    ),
    cfg.ListOpt(
        "disabled_c_states",
        default=[],
        help="Names of idle states that CPUs of the class must not enter, such as C6. The names are in the"
        " files /sys/devices/system/cpu/cpu0/cpuidle/state*/name.",
    ),
    cfg.StrOpt(
        "uncore_min_frequency",
        help="Lowest frequency of the uncore of a package (caches, memory controllers): a number of kHz, min"
        " or turbo. The option needs the kernel's driver intel_uncore_frequency.",
    ),
    cfg.StrOpt(
        "uncore_max_frequency", help="Highest frequency of the uncore, in the format of uncore_min_frequency."
    ),
    cfg.StrOpt(
        "park",
        choices=[
            ("offline", "the agent takes the CPUs of the core offline"),
            (
                "governor",
                "the CPUs get the option governor of this section only while they are parked; default:"
                " powersave",
            ),
            ("c-state", "the agent disables all idle states except the deepest"),
        ],
        help="How the agent parks dedicated cores that no guest uses, to save power. The"
        " agent parks a core after park_after seconds, and wakes it before a guest starts on it. The option"
        " is valid only in [cpu_class:idle]. Default: the agent parks no cores.",
    ),
    cfg.FloatOpt(
        "park_after",
        default=60.0,
        min=0.0,
        help="Seconds that a core must be unused before the agent parks the core. The agent then parks it at"
        " the next event of a guest, or at the next comparison ([guests] reconcile_interval).",
    ),
]

SECTIONS: Final = {f"{CPU_CLASS}NAME": OPTS}
