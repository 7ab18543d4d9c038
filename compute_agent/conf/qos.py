"""What gives way when the host is overloaded.

That is [qos], and a section of its own for each watermark and for each class of guests.

``[watermark:NAME]``, ``[qos_class:NAME]``, ``[interference:NAME]``, ``[blockio_class:NAME]``,
``[cpu_class:NAME]``, ``[cpu_pool:NAME]`` and ``[guest_rule:NAME]`` are known once the files have been read,
see ``register_sections``. In these sections and in [qos] an option that does not exist is refused, as one
that is not applied could cost guests.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf import blockio, cpu_class, cpu_pool, guest_rule, interference
from compute_agent.conf.blockio import BLOCKIO_CLASS
from compute_agent.conf.cpu_class import CPU_CLASS
from compute_agent.conf.guest_rule import GUEST_RULE
from compute_agent.conf.interference import INTERFERENCE
from compute_agent.conf.written import files_of, read, value_error
from compute_agent.model.cpuset import CPU_POOL
from compute_agent.model.guest_settings import BEST_EFFORT

GROUP = "qos"
WATERMARK: Final = "watermark:"
QOS_CLASS: Final = "qos_class:"

OPTS: Final = [
    cfg.FloatOpt(
        "interval",
        default=1.0,
        min=0.1,
        help="Seconds between two rounds: usage is read, compared with the watermarks, and acted on.",
    ),
    cfg.FloatOpt(
        "margin",
        default=10.0,
        min=0.0,
        max=100.0,
        help="Percent by which more is freed than the distance to the line, so that the host ends just below"
        " it and does not flap.",
    ),
    cfg.FloatOpt(
        "step",
        default=20.0,
        min=1.0,
        max=90.0,
        help="Percent of its present limit that a step of throttling takes from a guest; restoring goes by"
        " the same steps.",
    ),
    cfg.FloatOpt(
        "min_share",
        default=10.0,
        min=1.0,
        max=100.0,
        help="Percent of what it is entitled to that a throttled guest keeps in any case.",
    ),
    cfg.StrOpt(
        "highest_class",
        default=BEST_EFFORT,
        help="Guests of this class and of lower ones may be acted on; guests of higher classes, of unknown"
        " classes, and those with dedicated CPUs never are.",
    ),
    cfg.FloatOpt(
        "evict_grace",
        default=60.0,
        min=0.0,
        help="Seconds that an evicted guest has to end after it was asked to, before it is killed.",
    ),
    cfg.StrOpt(
        "evict_command",
        help="Program that makes an evicted guest leave, in place of asking it to stop: a live migration, for"
        " example. Called with the guest's uuid as its last argument; blanks separate arguments, quotes"
        " as in a shell; no shell is started. The program does not inherit the agent's OS_*"
        " environment variables: it has to read its credentials itself.",
    ),
    cfg.FloatOpt(
        "evict_command_timeout",
        default=600.0,
        min=1.0,
        help="Seconds after which evict_command is ended and counts as failed.",
    ),
]

WATERMARK_OPTS: Final = [
    cfg.StrOpt(
        "metric",
        help="What is watched, such as cpu_usage; `compute-agent watermark list --metrics` names all.",
    ),
    cfg.StrOpt(
        "throttle_down",
        help="Above this line guests are throttled: a number in the metric's unit, with K, M, G or T for"
        " powers of 1024 if wanted, or a percentage of what the host has, such as 80%.",
    ),
    cfg.StrOpt("throttle_up", help="Below this line throttled guests are given back what they had."),
    cfg.StrOpt("evict", help="Above this line guests are evicted."),
    cfg.StrOpt("disable_scheduling", help="Above this line no new guests are sent to this host."),
    cfg.IntOpt(
        "for_samples",
        default=3,
        min=1,
        help="Rounds in a row in which usage is above a line before something is done.",
    ),
    cfg.FloatOpt(
        "cool_down",
        default=30.0,
        min=0.0,
        help="Seconds without any breach of this watermark before something is given back: throttled guests"
        " restored, new guests let in. For metrics whose gain cannot be computed, such as pressures, it"
        " doubles each time that giving back has led to a new breach, up to 16 times.",
    ),
    cfg.StrOpt(
        "mode",
        default="act",
        choices=[("act", "do it"), ("preview", "only log, record and count the actions")],
        help="Whether the agent acts at this watermark.",
    ),
    cfg.ListOpt(
        "qos_classes",
        default=[],
        help="Classes of the guests that are throttled or evicted; all that may be acted on if empty.",
    ),
    cfg.IntOpt("max_priority", help="Highest priority of the guests that are throttled or evicted."),
]

QOS_CLASS_OPTS: Final = [
    cfg.IntOpt(
        "rank",
        help="Position among the classes: guests of a lower rank give way first. BE is 0, LS 10, LSR 20."
        " A class of another name needs one. CPUs of classes that rank no higher than BE weigh as those of BE"
        " do: a hundredth.",
    ),
    cfg.StrOpt("llc_range", help="Part of the last-level cache ways open to the class in percent: 0-30."),
    cfg.StrOpt(
        "llc_code_range",
        help="The same for code alone, where code and data have masks of their own (mount option cdp); goes"
        " before llc_range and llc_range_per_cache.",
    ),
    cfg.StrOpt("llc_data_range", help="The same for data."),
    cfg.StrOpt(
        "l2_range",
        help="Part of the ways of each cache of level 2 that the class may fill, where these can be divided.",
    ),
    cfg.StrOpt("mb_percent", help="Memory bandwidth of the class in percent."),
    cfg.StrOpt("llc_range_per_cache", help="What differs on some caches: 0:0-50, 1:20-80."),
    cfg.StrOpt("mb_percent_per_cache", help="What differs on some memory bandwidth domains: 0:40, 1:80."),
    cfg.IntOpt(
        "memory_high",
        min=1,
        max=1000,
        help="Percent of what a guest holds of MEMORY_MB above which it is slowed down and has to give memory"
        " back (memory.high; <soft_limit> of a domain, whose memory is its MEMORY_MB and more). Unless set:"
        " never.",
    ),
    cfg.IntOpt(
        "memory_low",
        min=0,
        max=100,
        help="Percent of what a process guest holds of MEMORY_MB that the kernel spares as long as others"
        " have something to give (memory.low). Unless set: 100 for LSR, else 0.",
    ),
    cfg.IntOpt(
        "oom_score_adj",
        min=-1000,
        max=1000,
        help="Guests with more of it are killed first where memory runs out, those with -1000 never. Unless"
        " set: 500 for BE and classes that rank no higher, 0 for LSR, else 100. Less than 0 takes"
        " CAP_SYS_RESOURCE, which the unit does not have.",
    ),
    cfg.StrOpt(
        "cpu_class",
        help="Section [cpu_class:NAME] by which the dedicated CPUs of guests of the class work. Unless set:"
        " as they were found.",
    ),
    cfg.StrOpt(
        "isolation",
        choices=[
            ("shared", "interrupts, workqueues and watchdogs of the host may run there"),
            ("quiet", "they run on other CPUs, as far as the kernel lets them move"),
        ],
        help="How far work of the host keeps off the dedicated CPUs of guests of the class. Unless set:"
        " shared.",
    ),
]

_SAMPLE_NAME: Final = "name"
"""What ``oslo-config-generator`` calls the sections ``[KIND:NAME]``."""

_TEMPLATES: Final = {
    WATERMARK: WATERMARK_OPTS,
    QOS_CLASS: QOS_CLASS_OPTS,
    INTERFERENCE: interference.OPTS,
    BLOCKIO_CLASS: blockio.OPTS,
    CPU_CLASS: cpu_class.OPTS,
    CPU_POOL: cpu_pool.OPTS,
    GUEST_RULE: guest_rule.OPTS,
}


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make section [qos] known to ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(GROUP, OPTS), (f"{WATERMARK}NAME", WATERMARK_OPTS), (f"{QOS_CLASS}NAME", QOS_CLASS_OPTS)]


def register_sections(conf: cfg.ConfigOpts) -> None:
    """Make the sections known that the files of ``conf`` have for watermarks and classes.

    :raises cfg.Error: naming section and option where a section or an option is misspelt, or a value is not
        of its kind.
    """
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


def watermark_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each watermark, in the order of their names."""
    return _sections(conf, WATERMARK)


def qos_class_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each configured class, in the order of their names."""
    return _sections(conf, QOS_CLASS)


def interference_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each watch for interference, in the order of their names."""
    return _sections(conf, INTERFERENCE)


def blockio_class_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each class of block I/O, in the order of their names."""
    return _sections(conf, BLOCKIO_CLASS)


def cpu_class_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each class of CPUs, in the order of their names."""
    return _sections(conf, CPU_CLASS)


def cpu_pool_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each pool of CPUs, in the order of their names."""
    return _sections(conf, CPU_POOL)


def guest_rule_sections(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    """Name and options of each rule for guests, in the order of their names."""
    return _sections(conf, GUEST_RULE)


def _sections(conf: cfg.ConfigOpts, prefix: str) -> Iterator[tuple[str, Any]]:
    """The sections of a kind, but for those called as in the sample file with nothing in them."""
    for section in conf.list_all_sections():
        if section.startswith(prefix):
            name = section.removeprefix(prefix)
            if name.lower() != _SAMPLE_NAME or _has_options(conf, section, _TEMPLATES[prefix]):
                yield name, conf[section]


def _has_options(conf: cfg.ConfigOpts, section: str, options: Iterable[Any]) -> bool:
    locations = [conf.get_location(option.dest, section) for option in options]
    return any(found is not None and found.location.is_user_controlled for found in locations)


def _options_of(section: str) -> list[Any] | None:
    """The options that a section may have; None for sections of other subjects."""
    if section == GROUP:
        return OPTS
    for prefix, options in _TEMPLATES.items():
        if section.startswith(prefix):
            if section.removeprefix(prefix).strip() != section.removeprefix(prefix) or section == prefix:
                raise cfg.ConfigFileValueError(f"[{section}]: a name is missing after {prefix!r}")
            return options
    word = section.lower()
    if word.startswith(
        ("watermark", "qos", "interference", "blockio", "cpu_class", "cpu_pool", "guest_rule")
    ):
        raise cfg.ConfigFileValueError(
            f"[{section}]: there is no such section; there are [{GROUP}], [{WATERMARK}NAME],"
            f" [{QOS_CLASS}NAME], [{INTERFERENCE}NAME], [{BLOCKIO_CLASS}NAME], [{CPU_CLASS}NAME],"
            f" [{CPU_POOL}NAME] and [{GUEST_RULE}NAME]"
        )
    return None
