"""Commands about guests. Each command sends one request to the daemon."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from compute_agent.cmd.base import AgentLister, Commands, ShowOne
from compute_agent.model.guest_settings import (
    ISOLATION_LEVELS,
    SETTING_NAMES,
    EmulatorPolicy,
    MemoryType,
    ThreadPolicy,
)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add options for settings that an operator can also change while the guest runs."""
    parser.add_argument(
        "--qos-class", help="QoS class of the guest: BE, LS, LSR, or the name of a section [qos_class:NAME]"
    )
    parser.add_argument(
        "--priority",
        type=int,
        help="priority of the guest; among guests of the same QoS class, guests with a lower priority are"
        " limited and evicted first",
    )
    parser.add_argument("--thread-policy", choices=[policy.value for policy in ThreadPolicy])
    parser.add_argument("--emulator-policy", choices=[policy.value for policy in EmulatorPolicy])
    parser.add_argument(
        "--blockio-class",
        help="class of block I/O: the name of a section [blockio_class:NAME]; an empty name means no class",
    )
    parser.add_argument(
        "--cpu-class",
        help="class of the guest's dedicated CPUs: the name of a section [cpu_class:NAME]; if the name is"
        " empty, the option cpu_class of the guest's QoS class applies",
    )
    parser.add_argument(
        "--isolation",
        choices=ISOLATION_LEVELS,
        help="isolation of the guest's dedicated CPUs. With shared, interrupts and other work of the host run"
        " there, too. With quiet, this work moves to other CPUs. With alone, the CPUs also form a cpuset"
        " partition. Default: the option isolation of the guest's QoS class",
    )
    parser.add_argument(
        "--spread",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="choose dedicated CPUs on as many cores as possible; the option applies only with the thread"
        " policy prefer",
    )
    parser.add_argument(
        "--preserve",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="leave the guest unchanged: the agent does not pin, limit or evict the guest",
    )
    parser.add_argument(
        "--memory-type",
        choices=[kind.value for kind in MemoryType],
        help="kind of memory that the guest gets; default: any",
    )
    parser.add_argument(
        "--resctrl",
        metavar="JSON",
        help="part of the last-level cache and of memory bandwidth, in percent, such as"
        """ {"LLC": {"schemata": {"range": [20, 80]}}, "MB": {"schemata": {"percent": 20}}}""",
    )


def _parse_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals and name not in os.environ:
        raise argparse.ArgumentTypeError(f"this shell has no variable {name}; write {name}=VALUE")
    return name, value if equals else os.environ[name]


def _given_options(parsed_args: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(parsed_args, name)) is not None}


class _GuestStart(ShowOne):
    """Base class of commands that start or adopt a guest. Adds the options that only a new guest can have."""

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--uuid", help="consumer uuid of the allocation that the guest uses; default: a new uuid"
        )
        parser.add_argument("--name", help="name of the guest; default: its uuid")
        parser.add_argument(
            "--vcpus", type=int, help="number of guest CPUs; default: the number of CPUs in the allocation"
        )
        _add_settings(parser)

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        return _given_options(parsed_args, "uuid", "name", "vcpus", *SETTING_NAMES)


class GuestRun(_GuestStart):
    """Start a process as a guest. The process is pinned to its CPUs before its first instruction.

    Example: guest run --vcpus 2 -- COMMAND ARG...
    """

    METHOD = "guest.run"

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        parser.add_argument(
            "--env",
            action="append",
            default=[],
            type=_parse_variable,
            metavar="NAME[=VALUE]",
            help="environment variable of the guest; without =VALUE, the variable gets the value that it has"
            " in this shell; can be given several times. Guests always have PATH, HOME, USER, LOGNAME, SHELL,"
            " LANG and COMPUTE_AGENT_GUEST (their uuid). Guests inherit no variables of the agent",
        )
        parser.add_argument("--cwd", default=os.getcwd(), help="working folder; default: the current folder")
        parser.add_argument("command", nargs="+", metavar="COMMAND", help="program and arguments, after --")

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """The settings of the guest, with its command, folder and environment."""
        environment = {"environment": dict(parsed_args.env)} if parsed_args.env else {}
        command = {"command": parsed_args.command, "cwd": parsed_args.cwd}
        return {**super().request_params(parsed_args), **command, **environment}


class GuestAdopt(_GuestStart):
    """Turn a running process, or all processes of a cgroup, into a guest, and pin the guest to its CPUs."""

    METHOD = "guest.adopt"

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        origin = parser.add_mutually_exclusive_group(required=True)
        origin.add_argument("--pid", type=int, help="process id")
        origin.add_argument(
            "--cgroup",
            metavar="PATH",
            help="cgroup (version 2) with the processes to adopt, as a folder such as /sys/fs/cgroup/work."
            " The agent moves all processes of this cgroup to a cgroup of the guest. The guest ends when the"
            " last of these processes ends.",
        )

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """The settings of the guest, with its process or cgroup."""
        # The daemon has another working folder, so it gets the absolute path.
        origin = (
            {"pid": parsed_args.pid}
            if parsed_args.pid is not None
            else {"cgroup": os.path.abspath(parsed_args.cgroup)}
        )
        return {**super().request_params(parsed_args), **origin}


class GuestList(AgentLister):
    """List the guests of this host and their CPUs."""

    METHOD = "guest.list"
    COLUMNS = ("uuid", "name", "driver", "pid", "vcpus", "kind", "cpus", "reason", "refused")
    EMPTY = "Nothing so far: this host has no guests that the agent knows of."


class _OneGuest(ShowOne):
    PARAMS: ClassVar[tuple[str, ...]] = ("guest",)

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("guest", help="uuid or name")


class GuestShow(_OneGuest):
    """Show all data of one guest."""

    METHOD = "guest.show"


BROKEN: Final = 3
"""Exit status of ``guest verify`` if at least one promise is broken."""


class GuestVerify(AgentLister):
    """Compare the promises to guests with the current state of the kernel.

    The promises to a guest are its CPUs, their sibling threads, its NUMA nodes, its cache, its memory
    bandwidth and its level of isolation. Each promise is kept, broken, limited or unknown. A promise is
    limited if the guest is throttled, or if the kernel cannot move work off the guest's CPUs.

    The exit status is 0 if no promise is broken, 3 if at least one promise is broken, and 1 for an error.
    """

    METHOD = "guest.verify"
    COLUMNS = ("guest", "name", "kind", "state", "promised", "found")
    EMPTY = "Nothing so far: no guest has a promise."

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("guest", nargs="?", help="uuid or name; all guests by default")

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """The guest; empty for all guests."""
        return _given_options(parsed_args, "guest")

    def request_rows(self, parsed_args: argparse.Namespace) -> list[Mapping[str, Any]]:
        """The verdicts. A broken promise sets the exit status."""
        rows = super().request_rows(parsed_args)
        if any(row["state"] == "broken" for row in rows):
            self.exit_status = BROKEN
        return rows


class GuestSet(_OneGuest):
    """Set or unset settings of a running guest of any driver.

    Settings from this command override the settings from the guest's domain, from its flavor and from rules.
    Settings from this command stay until you unset them, or until the guest has left the host for good.
    """

    METHOD = "guest.set"

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        _add_settings(parser)
        parser.add_argument(
            "--unset",
            action="append",
            default=[],
            metavar="SETTING",
            choices=SETTING_NAMES,
            help="remove the value that an earlier `guest set` gave to this setting, such as qos_class; can"
            " be given several times",
        )

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """The guest, the given settings, and the names of the settings to unset."""
        unset = {"unset": parsed_args.unset} if parsed_args.unset else {}
        return {**super().request_params(parsed_args), **_given_options(parsed_args, *SETTING_NAMES), **unset}


class GuestLimit(_OneGuest):
    """Limit the CPU use of a guest by hand, until the agent ends.

    If other limits of the guest exist, such as limits from watermarks, the lowest limit applies.
    """

    METHOD = "guest.limit"
    PARAMS = ("guest", "cpus")

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        limit = parser.add_mutually_exclusive_group(required=True)
        limit.add_argument(
            "--cpus",
            type=float,
            help="maximum number of CPUs that all threads of the guest use together, such as 0.5",
        )
        limit.add_argument("--unset", action="store_true", help="remove the limit that was set by hand")


class GuestEvict(_OneGuest):
    """Evict a guest in the same way as a watermark: run [qos] evict_command, or ask the guest to stop.

    When the guest has left, the agent deletes the guest's allocation on this host. If nova-compute owns the
    root provider of this host, the agent does not delete the allocation, because Nova deletes it.
    `compute-agent event list --kind evict` shows the outcome.
    """

    METHOD = "guest.evict"


class GuestMove(_OneGuest):
    """Move a running guest from CPUs that are no longer in cpu_dedicated_set to CPUs of the current sets.

    The agent moves such a guest by itself only if [policy] rebalance is true.
    """

    METHOD = "guest.move"
    PARAMS = ("guest", "dry_run")

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="print the CPUs to which the guest would move, and move nothing",
        )


class GuestStop(_OneGuest):
    """Stop a guest.

    The guest's allocation in Placement stays, and the owner of the allocation has to delete it.

    The agent deletes the allocation only if the agent itself has claimed it ([guests] claim).
    """

    METHOD = "guest.stop"


COMMANDS: Final[Commands] = {
    "guest run": GuestRun,
    "guest adopt": GuestAdopt,
    "guest list": GuestList,
    "guest show": GuestShow,
    "guest verify": GuestVerify,
    "guest set": GuestSet,
    "guest limit": GuestLimit,
    "guest evict": GuestEvict,
    "guest move": GuestMove,
    "guest stop": GuestStop,
}
