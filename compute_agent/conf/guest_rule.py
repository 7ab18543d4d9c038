"""Rules for settings of guests: a section ``[guest_rule:NAME]`` for each rule."""

from typing import Any, Final

from oslo_config import cfg

from compute_agent.model.guest_settings import (
    ISOLATION_LEVELS,
    MAX_PRIORITY,
    EmulatorPolicy,
    MemoryType,
    ThreadPolicy,
)

GUEST_RULE: Final = "guest_rule:"

MATCH: Final = "match_"
"""Prefix of options that select the guests of a rule."""

_PATTERNS: Final = "a list of texts or patterns with *, ? and [abc], of which one has to match"
_PAIRS: Final = "a list of KEY=PATTERN, or KEY for any value; patterns of one key are alternatives"

_MEMORY_TYPES: Final = {
    MemoryType.ANY.value: "memory of any kind",
    MemoryType.DRAM.value: "ordinary memory",
    MemoryType.HBM.value: "high-bandwidth memory",
    MemoryType.CXL.value: "memory behind CXL",
    MemoryType.PMEM.value: "persistent memory",
    MemoryType.GPU.value: "memory of GPUs",
}
_THREAD_POLICIES: Final = {
    ThreadPolicy.PREFER.value: "sibling threads together, if there are any",
    ThreadPolicy.REQUIRE.value: "sibling threads, or the guest has no place",
    ThreadPolicy.ISOLATE.value: "one thread of each core; the other threads stay empty",
    ThreadPolicy.SPREAD.value: "different cores; a core is shared with another guest only if none is free",
}
_EMULATOR_POLICIES: Final = {
    EmulatorPolicy.SHARE.value: "on the shared CPUs of the host",
    EmulatorPolicy.ISOLATE.value: "on a dedicated CPU of the guest that runs no guest CPU",
}

_MATCHES: Final = [
    cfg.ListOpt("match_driver", default=[], help=f"Driver of the guest, libvirt or process: {_PATTERNS}."),
    cfg.ListOpt("match_flavor", default=[], help=f"Name of the flavor in Nova: {_PATTERNS}."),
    cfg.ListOpt("match_extra_specs", default=[], help=f"Extra specs of the flavor: {_PAIRS}."),
    cfg.ListOpt("match_project", default=[], help=f"Id or name of the project: {_PATTERNS}."),
    cfg.ListOpt("match_user", default=[], help=f"Id or name of the user: {_PATTERNS}."),
    cfg.ListOpt("match_image", default=[], help=f"Id of the image: {_PATTERNS}."),
    cfg.ListOpt(
        "match_image_properties",
        default=[],
        help=f"Properties of the image, as far as Nova knows them: {_PAIRS}.",
    ),
    cfg.ListOpt(
        "match_name",
        default=[],
        help=f"Name of the guest, in its driver or in Nova: {_PATTERNS}. * matches every guest.",
    ),
    cfg.ListOpt("match_consumer_type", default=[], help=f"Type of the consumer in Placement: {_PATTERNS}."),
    cfg.ListOpt(
        "match_trait",
        default=[],
        help=f"Traits of the providers of this host that the guest holds something of: {_PATTERNS}.",
    ),
    cfg.ListOpt(
        "match_resource_class",
        default=[],
        help=f"Resource classes that the guest holds of this host: {_PATTERNS}.",
    ),
    cfg.ListOpt(
        "match_cgroup",
        default=[],
        help="Path of the cgroup that an adopted process was in, or its last part, such as a unit of systemd:"
        f" {_PATTERNS}.",
    ),
]

OPTS: Final = [
    cfg.IntOpt(
        "order",
        default=100,
        help="Position among the rules. Only the lowest rule that matches a guest applies; of two rules with"
        " the same order, the first by name.",
    ),
    *_MATCHES,
    cfg.StrOpt("qos_class", help="Class of the guests, a section [qos_class:NAME] or BE, LS or LSR."),
    cfg.IntOpt(
        "priority",
        min=-MAX_PRIORITY,
        max=MAX_PRIORITY,
        help="Priority of the guests. Within a class, guests of a lower priority are throttled and"
        " evicted first.",
    ),
    cfg.StrOpt(
        "resctrl", help="Annotation about caches and memory bandwidth, as --resctrl of guest set takes it."
    ),
    cfg.StrOpt("blockio_class", help="Class of block I/O, a section [blockio_class:NAME]."),
    cfg.StrOpt(
        "cpu_class",
        help="Class of the dedicated CPUs of the guests, a section [cpu_class:NAME], in place of that of"
        " their class.",
    ),
    cfg.StrOpt(
        "isolation",
        choices=ISOLATION_LEVELS,
        help="How far interrupts and other work of the host keep off the dedicated CPUs of the guests, in"
        " place of the level of their class.",
    ),
    cfg.StrOpt(
        "memory_type",
        choices=list(_MEMORY_TYPES.items()),
        help="Kind of memory that the guests get.",
    ),
    cfg.BoolOpt(
        "spread",
        help="Whether dedicated CPUs go to as many cores as possible, where the thread policy is prefer.",
    ),
    cfg.StrOpt(
        "thread_policy",
        choices=list(_THREAD_POLICIES.items()),
        help="How dedicated CPUs relate to hardware threads.",
    ),
    cfg.StrOpt(
        "emulator_policy",
        choices=list(_EMULATOR_POLICIES.items()),
        help="Where emulator and I/O threads run.",
    ),
    cfg.BoolOpt(
        "preserve",
        help="Whether the agent leaves the guests as they are: no pins, no limits, no eviction.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register nothing: register_sections() of ``qos`` does, after the files have been read."""


def list_opts() -> list[tuple[str, list[Any]]]:
    """The options by section, for the sample file."""
    return [(f"{GUEST_RULE}NAME", OPTS)]
