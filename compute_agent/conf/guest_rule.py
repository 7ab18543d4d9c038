"""Rules that give settings to guests: a section ``[guest_rule:NAME]`` for each rule."""

from typing import Final

from oslo_config import cfg

from compute_agent.model.guest_settings import (
    MAX_PRIORITY,
    EmulatorPolicy,
    IsolationLevel,
    MemoryType,
    ThreadPolicy,
)

GUEST_RULE: Final = "guest_rule:"

MATCH: Final = "match_"
"""Prefix of the options that select the guests of a rule."""

_PATTERNS: Final = "a list of texts or patterns (*, ?, [abc]); at least one must match"
_PAIRS: Final = "a list of KEY=PATTERN, or KEY for any value; each key needs a matching pattern"

_MEMORY_TYPES: Final = {
    MemoryType.ANY.value: "memory of any kind",
    MemoryType.DRAM.value: "ordinary memory",
    MemoryType.HBM.value: "high-bandwidth memory",
    MemoryType.CXL.value: "memory connected by CXL",
    MemoryType.PMEM.value: "persistent memory",
    MemoryType.GPU.value: "memory of GPUs",
}
ISOLATION_CHOICES: Final = {
    IsolationLevel.SHARED.value: "interrupts, workqueues and watchdogs of the host may run on these CPUs",
    IsolationLevel.QUIET.value: "interrupts and processes of the host run on other CPUs, if they can move",
    IsolationLevel.ALONE.value: "as quiet, and the CPUs also form a cpuset partition (Linux 6.7)",
}
"""The levels of isolation with their descriptions, for options of rules and of classes."""

_THREAD_POLICIES: Final = {
    ThreadPolicy.PREFER.value: "sibling threads together, if there are any",
    ThreadPolicy.REQUIRE.value: "sibling threads; without them the guest is refused",
    ThreadPolicy.ISOLATE.value: "one thread of each core; the other threads stay empty",
    ThreadPolicy.SPREAD.value: "different cores; guests share a core only if no core is free",
}
_EMULATOR_POLICIES: Final = {
    EmulatorPolicy.SHARE.value: "on shared CPUs of the host, or without these on the CPUs of the guest",
    EmulatorPolicy.ISOLATE.value: "on an additional dedicated CPU of the guest, which runs no guest CPU",
}

_MATCHES: Final = [
    cfg.ListOpt(
        "match_driver",
        default=[],
        help=f"Driver of the guest, libvirt, process, systemd, podman or docker: {_PATTERNS}.",
    ),
    cfg.ListOpt("match_flavor", default=[], help=f"Name of the flavor in Nova: {_PATTERNS}."),
    cfg.ListOpt("match_extra_specs", default=[], help=f"Extra specs of the flavor: {_PAIRS}."),
    cfg.ListOpt("match_project", default=[], help=f"Id or name of the project: {_PATTERNS}."),
    cfg.ListOpt("match_user", default=[], help=f"Id or name of the user: {_PATTERNS}."),
    cfg.ListOpt("match_image", default=[], help=f"Id of the image: {_PATTERNS}."),
    cfg.ListOpt(
        "match_image_properties",
        default=[],
        help=f"Properties of the image that Nova knows: {_PAIRS}.",
    ),
    cfg.ListOpt(
        "match_name",
        default=[],
        help=f"Name of the guest in its driver (libvirt, for example) or in Nova: {_PATTERNS}. * matches"
        f" every guest.",
    ),
    cfg.ListOpt("match_consumer_type", default=[], help=f"Type of the consumer in Placement: {_PATTERNS}."),
    cfg.ListOpt(
        "match_trait",
        default=[],
        help=f"Traits of the providers on this host from which the guest has allocations: {_PATTERNS}.",
    ),
    cfg.ListOpt(
        "match_resource_class",
        default=[],
        help=f"Resource classes that the guest has allocated on this host: {_PATTERNS}.",
    ),
    cfg.ListOpt(
        "match_cgroup",
        default=[],
        help="Cgroup of an adopted process before its adoption: the path or its last part, such as a unit of"
        " systemd:"
        f" {_PATTERNS}.",
    ),
]

OPTS: Final = [
    cfg.IntOpt(
        "order",
        default=100,
        help="Number that orders the rules. If several rules match a guest, only the rule with the lowest"
        " number applies. If several of these rules have this number, the first of them by name applies.",
    ),
    *_MATCHES,
    cfg.StrOpt(
        "qos_class", help="Class of the guests: BE, LS, LSR, or the name of a section [qos_class:NAME]."
    ),
    cfg.IntOpt(
        "priority",
        min=-MAX_PRIORITY,
        max=MAX_PRIORITY,
        help="Priority of the guests. Among guests of the same QoS class, guests with a lower priority are"
        " throttled and evicted first.",
    ),
    cfg.StrOpt(
        "resctrl",
        help="Limits of caches and memory bandwidth, in the format of `compute-agent guest set --resctrl`.",
    ),
    cfg.StrOpt("blockio_class", help="Class of block I/O: the name of a section [blockio_class:NAME]."),
    cfg.StrOpt(
        "cpu_class",
        help="Class of the dedicated CPUs of the guests: the name of a section [cpu_class:NAME]. The"
        " option overrides cpu_class of [qos_class:NAME].",
    ),
    cfg.StrOpt(
        "isolation",
        choices=list(ISOLATION_CHOICES.items()),
        help="Whether interrupts and other work of the host may run on the dedicated CPUs of the guests."
        " The option overrides isolation of [qos_class:NAME].",
    ),
    cfg.StrOpt(
        "memory_type",
        choices=list(_MEMORY_TYPES.items()),
        help="Kind of memory that the guests get.",
    ),
    cfg.BoolOpt(
        "spread",
        help="Whether the dedicated CPUs of a guest are on as many cores as possible. The option applies only"
        " if thread_policy is prefer.",
    ),
    cfg.StrOpt(
        "thread_policy",
        choices=list(_THREAD_POLICIES.items()),
        help="Choice of hardware threads for the dedicated CPUs of the guests.",
    ),
    cfg.StrOpt(
        "emulator_policy",
        choices=list(_EMULATOR_POLICIES.items()),
        help="CPUs on which emulator and I/O threads of the guests run.",
    ),
    cfg.BoolOpt(
        "preserve",
        help="Whether the agent leaves the guests unchanged: it does not pin, limit or evict them.",
    ),
]

SECTIONS: Final = {f"{GUEST_RULE}NAME": OPTS}
