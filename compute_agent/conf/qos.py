"""Reactions to an overloaded host: section ``[qos]``, and a section for each watermark and class of guests.

A family is all sections with the same prefix, such as ``[watermark:NAME]`` or ``[guest_rule:NAME]``.
``register_sections`` registers the sections of all families after the files were read. An unknown option in
``[qos]`` or in a section of a family is an error. Otherwise a limit with a misspelt name would have no
effect, and no message would say so.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from oslo_config import cfg, types

from compute_agent.conf import blockio, cpu_class, cpu_pool, guest_rule, interference, metric_source
from compute_agent.conf.blockio import BLOCKIO_CLASS
from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.guest_rule import GUEST_RULE
from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.metric_source import METRIC_SOURCE
from compute_agent.conf.written import files_of, read, value_error
from compute_agent.model.cpuset import CPU_POOL
from compute_agent.model.guest_settings import BEST_EFFORT
from compute_agent.model.resource import CoreScope

GROUP = "qos"
WATERMARK: Final = "watermark:"
QOS_CLASS: Final = "qos_class:"

OPTS: Final = [
    cfg.FloatOpt(
        "interval",
        default=1.0,
        min=0.1,
        help="Seconds between two rounds in which the agent checks the watermarks (sections"
        " [watermark:NAME]). In each round, the agent reads the use of resources, and compares this use with"
        " the thresholds of the watermarks. If a threshold is exceeded for long enough, the agent throttles"
        " or evicts guests.",
    ),
    cfg.FloatOpt(
        "margin",
        default=10.0,
        min=0.0,
        max=100.0,
        help="Safety margin of throttling and eviction, in percent of the usage above the threshold. The"
        " agent frees this usage and the margin. The usage of the host then falls clearly below the"
        " threshold. Otherwise throttling would start and stop all the time.",
    ),
    cfg.FloatOpt(
        "step",
        default=20.0,
        min=1.0,
        max=90.0,
        help="Percentage by which one step of throttling lowers the current limit of a guest. When the agent"
        " restores the guest, it raises the limit in the same steps.",
    ),
    cfg.FloatOpt(
        "min_share",
        default=10.0,
        min=1.0,
        max=100.0,
        help="Part of its fair share (allotment) that a throttled guest always keeps, in percent of the fair"
        " share.",
    ),
    cfg.StrOpt(
        "highest_class",
        default=BEST_EFFORT,
        help="Highest class of guests that watermarks and sections [interference:NAME] are allowed to"
        " throttle or evict. They never throttle or evict guests of higher or unknown classes, or guests with"
        " dedicated CPUs. Only a command limits these guests. Only a command or the end of their claim evicts"
        " these guests.",
    ),
    cfg.FloatOpt(
        "evict_grace",
        default=60.0,
        min=0.0,
        help="Seconds that an evicted guest has to shut down. After this time the agent kills the guest. If"
        " evict_command is set, the agent does not kill the guest. The eviction then counts as failed if the"
        " guest still runs this many seconds after the end of the program.",
    ),
    cfg.StrOpt(
        "evict_command",
        help="Program that the agent runs to evict a guest, instead of asking the guest to stop. For example,"
        " the program starts a live migration. The last argument of the program is the guest's uuid. Blanks"
        " separate arguments, and quotes work as in a shell, but no shell is started. The program gets PATH,"
        " HOME and similar environment variables of the agent, but no OS_* variables. The program has to read"
        " its credentials from another place.",
    ),
    cfg.FloatOpt(
        "evict_command_timeout",
        default=600.0,
        min=1.0,
        help="Maximum run time of evict_command, in seconds. After this time the agent ends the program and"
        " counts it as failed.",
    ),
]

WATERMARK_OPTS: Final = [
    cfg.StrOpt(
        "metric",
        help="Metric that the watermark watches, such as cpu_usage, or an expression over metrics, such as"
        " memory_pressure > 10 and swap_in > 50M. `compute-agent watermark list --metrics` lists all metrics."
        " An expression can contain + - * /, comparisons, and, or, not, and parentheses. The first metric of"
        " an expression decides how the agent throttles and evicts guests. If the result of the expression is"
        " true or false, set throttle_down and evict to true, and throttle_up to false.",
    ),
    cfg.StrOpt(
        "throttle_down",
        help="Usage above which the agent throttles guests: a percentage of the host's capacity, such as 80%,"
        " or a number in the unit of the metric. K, M, G and T are powers of 1024. A list of other values can"
        " follow, each for a period of the week: 85%, 22:00-06:00 95%, sat-sun 95%. Times are in the time"
        " zone of the host. If periods overlap, the last period in the list applies.",
    ),
    cfg.StrOpt(
        "throttle_up", help="Usage below which throttled guests are restored, in the format of throttle_down."
    ),
    cfg.StrOpt(
        "reclaim",
        help="Usage above which the agent tells the kernel to move memory of guests to swap (memory.reclaim"
        " of cgroup v2). The value has the format of throttle_down. The option is valid only for the metric"
        " memory_usage, and the host needs swap. The kernel first moves the memory that guests have not used"
        " for the longest time. A guest loses at most 256 MiB in 10 seconds, and keeps min_share of its"
        " memory. If a guest needs memory that is in swap, the guest waits until the kernel has read this"
        " memory back.",
    ),
    cfg.StrOpt("evict", help="Usage above which guests are evicted, in the format of throttle_down."),
    cfg.StrOpt(
        "disable_scheduling", help="Usage above which the scheduler sends no new guests to this host."
    ),
    cfg.IntOpt(
        "for_samples",
        default=3,
        min=1,
        help="Number of consecutive rounds with usage above a threshold of this section before the agent"
        " acts.",
    ),
    cfg.FloatOpt(
        "cool_down",
        default=30.0,
        min=0.0,
        help="Time, in seconds, that the metric has to stay below throttle_down and evict before the agent"
        " restores throttled guests. The metric has to stay below disable_scheduling for the same time before"
        " the scheduler sends new guests again. For some metrics, such as pressures, the agent cannot compute"
        " the effect of a restore. For these metrics, the agent doubles the time if a restore makes the"
        " metric cross a threshold again. The time grows to at most 16 times the value of this option.",
    ),
    cfg.StrOpt(
        "mode",
        default="act",
        choices=[
            ("act", "the agent takes the actions"),
            ("preview", "the agent only logs, records and counts the actions"),
        ],
        help="Whether the agent takes the actions of this watermark.",
    ),
    cfg.ListOpt(
        "qos_classes",
        default=[],
        help="Classes of the guests that this watermark throttles or evicts. An empty list means all classes"
        " up to [qos] highest_class.",
    ),
    cfg.IntOpt(
        "max_priority",
        help="Highest priority of the guests that this watermark throttles or evicts. Default: no limit.",
    ),
    cfg.ListOpt(
        "order",
        default=[],
        item_type=types.String(
            choices=[
                ("class", "lowest class"),
                ("priority", "lowest priority"),
                ("usage", "largest use of the metric"),
                ("cpu_usage", "largest use of CPU"),
                ("youngest", "latest start"),
                ("oldest", "earliest start"),
            ]
        ),
        help="Criteria for the order in which guests are throttled or evicted, the most important"
        " criterion first. If empty, the order is: class, priority, use of the metric (if it is known for"
        " single guests), youngest.",
    ),
    cfg.FloatOpt(
        "step",
        min=1.0,
        max=90.0,
        help="Overrides [qos] step for guests that this watermark throttles. If several watermarks with"
        " different steps set the same kind of limit, the agent raises these limits again by the smallest"
        " step.",
    ),
    cfg.FloatOpt(
        "min_share",
        min=1.0,
        max=100.0,
        help="Overrides [qos] min_share for guests that this watermark throttles.",
    ),
    cfg.FloatOpt(
        "evict_grace", min=0.0, help="Overrides [qos] evict_grace for guests that this watermark evicts."
    ),
    cfg.IntOpt(
        "evict_at_once",
        min=1,
        help="Maximum number of guests that the agent evicts at the same time. The option applies if the"
        " agent cannot compute how much of the metric an eviction frees. The agent evicts further guests if"
        " the metric is still above the threshold after another for_samples rounds. Default: 1 if the metric"
        " is an expression or is defined by a section [metric:NAME]; otherwise no maximum.",
    ),
]

QOS_CLASS_OPTS: Final = [
    cfg.IntOpt(
        "rank",
        help="Rank of the class. Guests of classes with a lower rank are throttled and evicted first. The"
        " class BE has rank 0, LS has rank 10, and LSR has rank 20. A class with another name needs this"
        " option. If the rank of a class is not above the rank of BE, its guests have the CPU weight of BE,"
        " which is a hundredth of the normal weight.",
    ),
    cfg.StrOpt(
        "llc_range",
        help="Part of each last-level cache that guests of the class are allowed to fill: a range such as"
        " 0-30, in percent of the ways that no guest has exclusively. If the ranges of two classes overlap,"
        " guests of both classes fill the common part.",
    ),
    cfg.StrOpt(
        "llc_code_range",
        help="Part of the last-level cache for code only. The option replaces llc_range. The option needs"
        " separate masks for code and data (mount option cdp), and overrides llc_range and"
        " llc_range_per_cache.",
    ),
    cfg.StrOpt(
        "llc_data_range",
        help="Part of the last-level cache for data only. The option has the same conditions as"
        " llc_code_range.",
    ),
    cfg.StrOpt(
        "l2_range",
        help="Part of each level-2 cache that guests of the class are allowed to fill: a range in percent."
        " The option needs a processor that can divide level-2 caches.",
    ),
    cfg.StrOpt("mb_percent", help="Maximum memory bandwidth of the class, in percent."),
    cfg.StrOpt(
        "mb_mbps",
        help="Maximum memory bandwidth of the class on each domain, in MB/s (10^6 bytes a second). The option"
        " replaces mb_percent. The option works only if the kernel accepts absolute values: on AMD"
        " processors, or with the mount option mba_MBps. Guests of the class share the bandwidth.",
    ),
    cfg.StrOpt(
        "llc_range_per_cache",
        help="The option llc_range for individual last-level caches, each with the id of the cache, such as"
        " 0:0-50, 1:20-80.",
    ),
    cfg.StrOpt(
        "mb_percent_per_cache",
        help="The option mb_percent for individual domains of memory bandwidth, each with the id of the"
        " domain, such as 0:40, 1:80.",
    ),
    cfg.StrOpt(
        "mb_mbps_per_cache",
        help="The option mb_mbps for individual domains, each with the id of the domain, such as 0:4000,"
        " 1:8000. The option has the same conditions as mb_mbps.",
    ),
    cfg.IntOpt(
        "memory_high",
        min=1,
        max=1000,
        help="Soft limit of a guest's memory, in percent of its allocated memory (MEMORY_MB and"
        " CUSTOM_RECLAIMED_MEMORY_MB). If the guest uses more, the kernel"
        " slows it down and reclaims its memory (memory.high, and <soft_limit> of a domain). A domain also"
        " needs memory for QEMU itself. Default: no limit.",
    ),
    cfg.IntOpt(
        "memory_limit_mb",
        min=1,
        help="Limit of the memory of a guest that holds no memory in Placement, in MiB (memory.max). The"
        " limit of any other guest comes from its allocation. A container or a unit of systemd with a limit"
        " of its own keeps its own limit. Nothing limits a domain. Default: no limit.",
    ),
    cfg.IntOpt(
        "memory_low",
        min=0,
        max=100,
        help="Percent of a process guest's allocated memory that the kernel protects (memory.low): the kernel"
        " reclaims memory of other guests first. Default: 100 for LSR, else 0.",
    ),
    cfg.IntOpt(
        "memory_min",
        min=0,
        max=100,
        help="Percent of a process guest's allocated memory that the kernel never reclaims (memory.min). If"
        " memory runs out, the kernel kills processes instead of reclaiming this memory. Default: 0.",
    ),
    cfg.BoolOpt(
        "oom_group",
        help="Whether the kernel kills all processes of a process guest together when memory runs out"
        " (memory.oom.group). Default: false.",
    ),
    cfg.IntOpt(
        "oom_score_adj",
        min=-1000,
        max=1000,
        help="The kernel's oom_score_adj of guests. When memory runs out, the kernel kills guests with a"
        " higher value first. The kernel never kills guests with the value -1000. Default: 500 for BE and"
        " classes with the same or a lower rank, 0 for LSR, and 100 for all other classes. Values below 0"
        " need CAP_SYS_RESOURCE, which the systemd unit does not grant.",
    ),
    cfg.IntOpt(
        "cpu_weight",
        min=1,
        max=10_000,
        help="CPU weight of a guest for each VCPU, PCPU or reclaimed CPU that the guest holds (cpu.weight)."
        " Guests on the same CPU share its time by their weights. Default: 1 for BE and classes with the same"
        " or a lower rank, and 100 for all other classes. If the rank of a class is not above the rank of BE,"
        " the weight of the class cannot be above the weight of BE.",
    ),
    cfg.BoolOpt(
        "cpu_idle",
        help="Whether guests of the class run only while no other guest needs their CPUs (cpu.idle, Linux"
        " 5.15). These guests get even less CPU time than guests with the lowest weight. The option does not"
        " change how guests and processes of the host share CPU time; the weight of the guests' slice"
        " (systemd) decides this. Default: false.",
    ),
    cfg.IntOpt(
        "cpu_burst",
        min=0,
        max=100,
        help="Burst of a guest, in percent of its CPU quota (cpu.max.burst, Linux 5.14). A guest that uses"
        " less than its quota saves up to this amount of CPU time, and can use the saved time later. Default:"
        " 0.",
    ),
    cfg.IntOpt(
        "reclaimed_cap",
        min=1,
        max=1000,
        help="Maximum CPU time of a guest that holds only reclaimed CPUs (CUSTOM_RECLAIMED_VCPU), in percent"
        " of these CPUs. The limit applies even while CPUs are idle. Default: no limit.",
    ),
    cfg.IntOpt(
        "realtime_priority",
        min=1,
        max=49,
        help="Realtime priority of guest CPUs on dedicated CPUs. KVM domains get SCHED_FIFO; processes,"
        " services and containers get SCHED_RR. If another program has made realtime threads in a guest, as"
        " Nova does for hw:cpu_realtime, the agent does not change the priorities of this guest. The kernel's"
        " interrupt threads have priority 50. Default: no realtime priority.",
    ),
    cfg.StrOpt(
        "core_scheduling",
        choices=[
            (CoreScope.NONE.value, "all guests and processes"),
            (CoreScope.GUEST.value, "only the guest itself"),
            (CoreScope.CLASS.value, "only guests of the class"),
        ],
        help="Guests that are allowed to run on one hardware thread of a core while a guest of the class runs"
        " on the other thread (PR_SCHED_CORE, Linux 5.14). For 'guest' and 'class', the agent needs"
        " CAP_SYS_PTRACE. Default: none, which allows all guests and processes.",
    ),
    cfg.StrOpt(
        "cpu_class",
        help="Frequencies and idle states of CPUs: the name of a section [cpu_class:NAME]. The section"
        " applies to dedicated CPUs that only guests of this QoS class hold. Default: the CPUs stay"
        " unchanged.",
    ),
    cfg.StrOpt(
        "isolation",
        choices=list(guest_rule.ISOLATION_CHOICES.items()),
        help="Whether work of the host may run on dedicated CPUs that only guests of the class hold."
        " Default: shared.",
    ),
]

_SAMPLE_NAME: Final = "name"
"""The name that the sample file gives to the section of each family, ``NAME``. This text is in lower case,
because it is compared with names in lower case.
"""

FAMILIES: Final = {
    WATERMARK: WATERMARK_OPTS,
    QOS_CLASS: QOS_CLASS_OPTS,
    METRIC_SOURCE: metric_source.OPTS,
    INTERFERENCE: interference.OPTS,
    BLOCKIO_CLASS: blockio.OPTS,
    CPU_CLASS: cpu_class.OPTS,
    CPU_POOL: cpu_pool.OPTS,
    GUEST_RULE: guest_rule.OPTS,
}
"""The options of the sections of each family, by the beginning of their names."""

SECTIONS: Final = {GROUP: OPTS, f"{WATERMARK}NAME": WATERMARK_OPTS, f"{QOS_CLASS}NAME": QOS_CLASS_OPTS}


def register_sections(conf: cfg.ConfigOpts) -> None:
    """Register the sections of families in the files of ``conf``, and check their options.

    :raises cfg.Error: a section or an option is misspelt, or a value has the wrong type. The text of the
        error names the section and the option.
    """
    # oslo.config ignores the case of section names, so it would merge two sections that differ only in case.
    written = read(files_of(conf))
    folded: dict[str, str] = {}
    for section, names in written.items():
        options = _options_of(section)
        if options is None:
            continue
        if folded.setdefault(section.lower(), section) != section:
            raise cfg.ConfigFileValueError(
                f"[{section}] and [{folded[section.lower()]}] differ in upper and lower case only"
            )
        known = [option.name for option in options]
        for name in names:
            if name not in known:
                raise cfg.ConfigFileValueError(
                    f"[{section}] {name}: there is no such option; there are {', '.join(known)}"
                )
        if section != GROUP:
            conf.register_opts(options, group=section)
        for option in options:
            try:
                conf[section][option.dest]
            except cfg.ConfigSourceValueError as error:
                raise value_error(section, option.name, error) from error


def family_sections(conf: cfg.ConfigOpts, prefix: str) -> Iterator[tuple[str, Any]]:
    """The name and the options of each section of a family, sorted by name.

    A section ``NAME`` without options is left out, because it is from the sample file.

    :param prefix: the beginning of the names of the family, such as ``watermark:``.
    """
    for section in conf.list_all_sections():
        if section.startswith(prefix):
            name = section.removeprefix(prefix)
            if name.lower() != _SAMPLE_NAME or _has_options(conf, section, FAMILIES[prefix]):
                yield name, conf[section]


def _has_options(conf: cfg.ConfigOpts, section: str, options: Iterable[Any]) -> bool:
    locations = [conf.get_location(option.dest, section) for option in options]
    return any(found is not None and found.location.is_user_controlled for found in locations)


def _options_of(section: str) -> list[Any] | None:
    """The options that a section can have.

    The result is None for a section that is neither [qos] nor in a family.

    :raises cfg.Error: the name of the section is incomplete or misspelt.
    """
    if section == GROUP:
        return OPTS
    for prefix, options in FAMILIES.items():
        if section.startswith(prefix):
            if section.removeprefix(prefix).strip() != section.removeprefix(prefix) or section == prefix:
                raise cfg.ConfigFileValueError(f"[{section}]: a name is missing after {prefix!r}")
            return options
    # oslo.config would silently ignore a misspelt family, such as [watermarks:NAME].
    word = section.lower()
    if word.startswith(
        ("watermark", "qos", "metric:", "interference", "blockio", "cpu_class", "cpu_pool", "guest_rule")
    ):
        *most, last = (f"[{prefix}NAME]" for prefix in FAMILIES)
        known = ", ".join([f"[{GROUP}]", *most])
        raise cfg.ConfigFileValueError(f"[{section}]: there is no such section; there are {known} and {last}")
    return None
