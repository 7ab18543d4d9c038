"""Reactions to an overloaded host: section ``[qos]``, and a section for each watermark and class of guests.

``register_sections`` registers the sections of all families, such as ``[watermark:NAME]`` or
``[guest_rule:NAME]``, after the files were read. An unknown option in ``[qos]`` or in these sections is an
error. Otherwise a limit with a misspelt name would have no effect, and no message would say so.
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
        help="Seconds between two rounds of watermarks. In each round, the agent reads the use of resources"
        " and compares it with the watermarks. The agent throttles or evicts guests if a watermark requires"
        " this.",
    ),
    cfg.FloatOpt(
        "margin",
        default=10.0,
        min=0.0,
        max=100.0,
        help="How much more throttling and eviction free than the usage above the watermark, in percent of"
        " that usage. The usage then falls well below the watermark,"
        " so that throttling does not start and stop all the time.",
    ),
    cfg.FloatOpt(
        "step",
        default=20.0,
        min=1.0,
        max=90.0,
        help="Percentage by which one step of throttling lowers the current limit of a guest. The agent"
        " raises limits again in the same steps.",
    ),
    cfg.FloatOpt(
        "min_share",
        default=10.0,
        min=1.0,
        max=100.0,
        help="Percentage of its fair share (allotment) that a guest always keeps while it is throttled.",
    ),
    cfg.StrOpt(
        "highest_class",
        default=BEST_EFFORT,
        help="Highest class of guests that watermarks and interference may throttle or evict. Guests of"
        " higher or unknown classes, and guests with dedicated CPUs, are only limited or evicted by a"
        " command, or evicted at the end of a claim.",
    ),
    cfg.FloatOpt(
        "evict_grace",
        default=60.0,
        min=0.0,
        help="Seconds that an evicted guest has to shut down. After this time the agent kills the guest. With"
        " evict_command, the eviction instead counts as failed if the guest still runs this many seconds"
        " after the end of the program.",
    ),
    cfg.StrOpt(
        "evict_command",
        help="Program that the agent runs for an evicted guest instead of asking it to stop; for example, a"
        " live migration. The last argument of the program is the guest's uuid. Blanks separate arguments,"
        " and quotes work as in a shell, but no shell is started. The program gets PATH, HOME and similar"
        " environment variables of the agent, but no OS_* variables: it has to read its credentials itself.",
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
        " memory_pressure > 10 and swap_in > 50M. `compute-agent watermark list --metrics` lists all"
        " metrics. An expression can contain + - * /, comparisons, and, or, not, and parentheses. The"
        " agent throttles and evicts guests in the same way as for the first metric of the expression. If"
        " the result of the expression is true or false, set throttle_down and evict to true, and"
        " throttle_up to false.",
    ),
    cfg.StrOpt(
        "throttle_down",
        help="Usage above which the agent throttles guests: a percentage of the host's capacity, such as"
        " 80%, or a number in the unit of the metric. K, M, G and T are powers of 1024. Other values for"
        " periods of the week may follow: 85%, 22:00-06:00 95%, sat-sun 95%. Times are in the time zone of"
        " the host. If periods overlap, the last period in the list applies.",
    ),
    cfg.StrOpt(
        "throttle_up", help="Usage below which throttled guests are restored, in the format of throttle_down."
    ),
    cfg.StrOpt(
        "reclaim",
        help="Usage above which the agent has the kernel move memory of guests to swap (memory.reclaim of"
        " cgroup v2), in the format of throttle_down. The option is valid only for the metric"
        " memory_usage, and the host needs swap. The kernel takes the memory that guests have not used for"
        " longest. A guest loses at most 256 MiB in 10 seconds, and keeps min_share of its memory. A guest"
        " that uses memory in swap waits until the kernel has read the memory back.",
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
        help="Seconds that the metric has to stay below throttle_down and evict before the agent restores"
        " throttled guests, and below disable_scheduling before it lets new guests in. For some metrics, such"
        " as pressures, the agent cannot compute the effect of a restore. For such metrics, the time until a"
        " restore doubles after each restore that makes the metric cross a threshold again, up to 16 times"
        " the value of the option.",
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
        help="Classes of the guests that this watermark throttles or evicts. With an empty list, these are"
        " all classes up to [qos] highest_class.",
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
        help="Overrides [qos] step for guests that this watermark throttles. If several watermarks set the"
        " same kind of limit with different steps, the agent restores these limits by the smallest step.",
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
        help="Maximum number of guests that the agent evicts at the same time if it cannot compute the"
        " amount that an eviction frees. The agent evicts the next guests after for_samples further rounds"
        " above the threshold. Default: 1 if the metric is an expression or is defined by a section"
        " [metric:NAME]; otherwise no maximum.",
    ),
]

QOS_CLASS_OPTS: Final = [
    cfg.IntOpt(
        "rank",
        help="Rank of the class. Guests of classes with a lower rank are throttled and evicted first. BE is"
        " 0, LS 10, LSR 20. A class with another name needs a rank. Guests of classes with at most the"
        " rank of BE have the CPU weight of BE, which is a hundredth of the normal weight.",
    ),
    cfg.StrOpt(
        "llc_range",
        help="Part of each last-level cache that guests of the class may fill: a range of percent of the ways"
        " that no guest has exclusively, such as 0-30. Guests of other classes may fill this part, too, if"
        " their ranges contain it.",
    ),
    cfg.StrOpt(
        "llc_code_range",
        help="Part of the last-level cache for code only, in place of llc_range. The option needs separate"
        " masks for code and data (mount option cdp), and overrides llc_range and llc_range_per_cache.",
    ),
    cfg.StrOpt(
        "llc_data_range",
        help="Part of the last-level cache for data only. The conditions of llc_code_range apply.",
    ),
    cfg.StrOpt(
        "l2_range",
        help="Part of each level-2 cache that guests of the class may fill: a range of percent. The option"
        " needs a processor that can divide level-2 caches.",
    ),
    cfg.StrOpt("mb_percent", help="Maximum memory bandwidth of the class, in percent."),
    cfg.StrOpt(
        "mb_mbps",
        help="Maximum memory bandwidth of the class on each domain, in MB/s (10^6 bytes a second), in place"
        " of mb_percent. The option needs absolute values: AMD, or the mount option mba_MBps. Guests of the"
        " class share the bandwidth.",
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
        " 1:8000. The conditions of mb_mbps"
        " apply.",
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
        " all classes with at most its rank, 0 for LSR, else 100. Values below 0 need CAP_SYS_RESOURCE,"
        " which the systemd unit does not grant.",
    ),
    cfg.IntOpt(
        "cpu_weight",
        min=1,
        max=10_000,
        help="CPU weight for each CPU that a guest holds (cpu.weight): VCPU, PCPU or reclaimed. Guests on the"
        " same CPU share its time by their weights. Default: 1 for BE and all classes with at most its rank,"
        " else 100. If the rank of a class is not above the rank of BE, its weight cannot be above the weight"
        " of BE.",
    ),
    cfg.BoolOpt(
        "cpu_idle",
        help="Whether guests run only while no other guest needs their CPUs (cpu.idle, Linux 5.15). Such"
        " guests get even less CPU time than guests with the lowest weight. The option does not change how"
        " guests and processes of the host share CPU time; the weight of the guests' slice (systemd)"
        " decides this. Default: false.",
    ),
    cfg.IntOpt(
        "cpu_burst",
        min=0,
        max=100,
        help="Percent of a guest's quota that the guest may save up while it uses less, and use later"
        " (cpu.max.burst, Linux 5.14). Default: 0.",
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
        " services and containers get SCHED_RR."
        " The agent does not change guests in which another program has made realtime threads, as Nova"
        " does for hw:cpu_realtime. The kernel's interrupt threads have priority 50. Default: no realtime"
        " priority.",
    ),
    cfg.StrOpt(
        "core_scheduling",
        choices=[
            (CoreScope.NONE.value, "all guests and processes"),
            (CoreScope.GUEST.value, "only the guest itself"),
            (CoreScope.CLASS.value, "only guests of the class"),
        ],
        help="Guests that may run on the other hardware thread of a core while a guest of the class runs"
        " there (PR_SCHED_CORE, Linux 5.14). For 'guest' and 'class', the agent needs CAP_SYS_PTRACE."
        " Default: none, so any guest or process may run there.",
    ),
    cfg.StrOpt(
        "cpu_class",
        help="Class of CPUs: the name of a section [cpu_class:NAME]. The section applies to dedicated CPUs"
        " that only guests of the class hold. Default: the CPUs stay unchanged.",
    ),
    cfg.StrOpt(
        "isolation",
        choices=list(guest_rule.ISOLATION_CHOICES.items()),
        help="Whether work of the host may run on dedicated CPUs that only guests of the class hold."
        " Default: shared.",
    ),
]

_SAMPLE_NAME: Final = "name"
"""The name of each section of a family in the sample file, ``NAME``, in lower case for comparisons."""

_TEMPLATES: Final = {
    WATERMARK: WATERMARK_OPTS,
    QOS_CLASS: QOS_CLASS_OPTS,
    METRIC_SOURCE: metric_source.OPTS,
    INTERFERENCE: interference.OPTS,
    BLOCKIO_CLASS: blockio.OPTS,
    CPU_CLASS: cpu_class.OPTS,
    CPU_POOL: cpu_pool.OPTS,
    GUEST_RULE: guest_rule.OPTS,
}


SECTIONS: Final = {GROUP: OPTS, f"{WATERMARK}NAME": WATERMARK_OPTS, f"{QOS_CLASS}NAME": QOS_CLASS_OPTS}
"""The options by section."""


def register_sections(conf: cfg.ConfigOpts) -> None:
    """Register the sections of families that the files of ``conf`` have, and check their options.

    :raises cfg.Error: a section or an option is misspelt, or a value has another type. The text names section
        and option.
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

    Empty sections from the sample file are left out.

    :param prefix: the beginning of the names of the family, such as ``watermark:``.
    """
    for section in conf.list_all_sections():
        if section.startswith(prefix):
            name = section.removeprefix(prefix)
            if name.lower() != _SAMPLE_NAME or _has_options(conf, section, _TEMPLATES[prefix]):
                yield name, conf[section]


def _has_options(conf: cfg.ConfigOpts, section: str, options: Iterable[Any]) -> bool:
    locations = [conf.get_location(option.dest, section) for option in options]
    return any(found is not None and found.location.is_user_controlled for found in locations)


def _options_of(section: str) -> list[Any] | None:
    """The options that a section may have.

    The result is None for a section that is neither [qos] nor in a family.

    :raises cfg.Error: the name of the section is incomplete or misspelt.
    """
    if section == GROUP:
        return OPTS
    for prefix, options in _TEMPLATES.items():
        if section.startswith(prefix):
            if section.removeprefix(prefix).strip() != section.removeprefix(prefix) or section == prefix:
                raise cfg.ConfigFileValueError(f"[{section}]: a name is missing after {prefix!r}")
            return options
    # oslo.config would silently ignore a misspelt family, such as [watermarks:NAME].
    word = section.lower()
    if word.startswith(
        ("watermark", "qos", "metric:", "interference", "blockio", "cpu_class", "cpu_pool", "guest_rule")
    ):
        raise cfg.ConfigFileValueError(
            f"[{section}]: there is no such section; there are [{GROUP}], [{WATERMARK}NAME],"
            f" [{QOS_CLASS}NAME], [{METRIC_SOURCE}NAME], [{INTERFERENCE}NAME], [{BLOCKIO_CLASS}NAME],"
            f" [{CPU_CLASS}NAME], [{CPU_POOL}NAME] and [{GUEST_RULE}NAME]"
        )
    return None
