"""Commands for allocations: ``audit``, and ``accept`` and ``restore`` after Placement lost allocations."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compute_agent.cmd.base import AgentLister, Commands, LinesColumn
from compute_agent.model.messages import ConfigError
from compute_agent.report.audit import DEFAULT_MIN_AGE, FindingKind

if TYPE_CHECKING:
    from compute_agent.report.history import HeldAllocation, RestoredConsumer

_RESTORED: Final = ("consumer", "resources", "project", "user", "outcome")


class AllocationsAccept(AgentLister):
    """Accept the allocations of guests in Placement, even if the database of Placement is an older copy.

    Guests lose allocations that Placement no longer has. The command lists these guests.
    """

    METHOD = "allocations.accept"
    COLUMNS = ("guest", "name", "held", "holds")
    EMPTY = "No guest lost anything: see placement_history in compute-agent status."


class AllocationsRestore(AgentLister):
    """Restore allocations in Placement for guests of many hosts, from the state files of their agents.

    Run the command after the database of Placement was restored from an older copy. The command changes only
    consumers that have no allocation. Each of these consumers gets exactly its former allocation, with the
    same project and user. The command needs no daemon, but it needs the address and credentials in
    [placement]. The exit status is 1 if an allocation could not be restored.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="list the changes, and make none")
        parser.add_argument(
            "files",
            nargs="+",
            type=Path,
            metavar="FILE",
            help="state.json from the [DEFAULT] state_path of an agent, or a current copy of this file",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Restore the allocations in the state files; return a row for each consumer."""
        # Only this command needs these modules, here and below; their import takes longer than an audit.
        from compute_agent.report.client import PlacementClient
        from compute_agent.report.history import restore_consumers

        held = [one for path in parsed_args.files for one in _held_of(path)]
        client = PlacementClient.from_conf(self.load_conf())
        rows = restore_consumers(client, held, parsed_args.dry_run)
        self.exit_status = int(any(row.has_failed for row in rows))
        return _RESTORED, [_shown_row(row) for row in rows]


def _held_of(path: Path) -> list[HeldAllocation]:
    """The allocations of a host's guests, read from the state file of its agent.

    Guests that migrate are left out.

    :raises ConfigError: the file is not the state of an agent.
    """
    from compute_agent.pipeline.state import parse
    from compute_agent.report.history import HeldAllocation

    try:
        state = parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used as the state of an agent: {error}") from error
    # During a migration Nova moves the allocation of the guest to the consumer of the migration.
    migrating = frozenset(state.migrations.values())
    return [
        HeldAllocation(uuid, guest.allocation, state.history.holders.get(uuid))
        for uuid, guest in state.guests.items()
        if guest.allocation and uuid not in migrating
    ]


def _shown_row(row: RestoredConsumer) -> tuple[Any, ...]:
    held, holder = row.held, row.held.holder
    owner = ("", "") if holder is None else (holder.project_id, holder.user_id)
    return held.consumer, LinesColumn(held.resources), *owner, row.outcome


# Each case has the same exit status as in ``nova-manage placement audit``.
FOUND: Final = 3
ALL_MENDED: Final = 4


class AuditCommand(AgentLister):
    """Compare the guests of this host with their allocations in Placement.

    The findings are guests without an allocation or without CPUs, and allocations without a guest. Guests
    that use other amounts, kinds of CPUs or PCI devices than they have allocated are findings, too. So are
    guests on CPUs of other guests, or on CPUs outside the CPU sets. Emulator threads on dedicated CPUs are a
    finding if the agent cannot move these threads.

    Two kinds of rows do not count as findings: guests that migrate, and emulator threads on dedicated CPUs
    with [isolation] emulator = leave.

    The exit status has the same meaning as in nova-manage placement audit. 0: no findings. 1: an error. 3:
    findings that are not repaired. 4: all findings were repaired.
    """

    METHOD = "audit"
    COLUMNS = ("finding", "consumer", "name", "resources", "detail", "remedy", "outcome")

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--heal",
            action="store_true",
            help="create missing allocations of guests, on the providers of the CPUs where they run",
        )
        parser.add_argument(
            "--delete",
            action="store_true",
            help="delete this host's part of allocations that have had no guest for --min-age seconds. The"
            " command lists these allocations first, and asks for confirmation",
        )
        parser.add_argument("--dry-run", action="store_true", help="list the changes, and make none")
        parser.add_argument("--yes", action="store_true", help="do not ask before deleting")
        parser.add_argument(
            "--min-age",
            type=float,
            default=DEFAULT_MIN_AGE,
            metavar="SECONDS",
            help="minimum time without a guest, in seconds, before an allocation is deleted; after a"
            f" restart of the agent this time begins again. The default is {DEFAULT_MIN_AGE:.0f}.",
        )
        parser.add_argument(
            "--consumer",
            action="append",
            default=[],
            metavar="UUID",
            help="check only this consumer; can be given several times",
        )

    def request_rows(self, parsed_args: argparse.Namespace) -> list[Mapping[str, Any]]:
        """Request the audit after the user has confirmed deletions; return a row for each finding."""
        rows = super().request_rows(parsed_args)
        if wrong := [row for row in rows if _is_fault(row)]:
            mended = all(row["outcome"] == "done" for row in wrong)
            self.exit_status = ALL_MENDED if mended else FOUND
        return rows

    def request_params(self, parsed_args: argparse.Namespace) -> dict[str, Any]:
        """The options of the audit, with the deletions that the user confirms."""
        params = {"min_age": parsed_args.min_age, "consumers": parsed_args.consumer}
        options = {"heal": parsed_args.heal, "delete": parsed_args.delete, "dry_run": parsed_args.dry_run}
        if parsed_args.delete and not parsed_args.dry_run and not parsed_args.yes:
            options["confirmed"] = self._confirm_deletions(params)
        return {**params, **options}

    def _confirm_deletions(self, params: dict[str, Any]) -> list[str]:
        """List the allocations to delete, and ask the user; return the confirmed consumers."""
        rows = self.ask_daemon("audit", {**params, "delete": True, "dry_run": True})
        doomed = [row for row in rows if row["remedy"] == "--delete" and row["outcome"] == "would be done"]
        if not doomed:
            return []
        for row in doomed:
            held = LinesColumn(row["resources"]).human_readable().replace("\n", "; ")
            self.app.stderr.write(f"to be deleted: {row['consumer']} ({held}), {row['detail']}\n")
        self.app.stderr.write(f"Delete these {len(doomed)} allocations? [y/N] ")
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in ("y", "yes"):
            self.app.stderr.write("Nothing is deleted.\n")
            return []
        return [row["consumer"] for row in doomed]


def _is_fault(row: Mapping[str, Any]) -> bool:
    """Whether a row of the audit is a finding, and so counts for the exit status."""
    # Nova leaves emulator threads on the dedicated CPUs of most guests. With emulator = leave such a row has
    # a remedy, and is no finding. A row without a remedy means that the agent could not move a thread.
    left = row["finding"] == FindingKind.EMULATOR and row["remedy"]
    return row["finding"] != FindingKind.MIGRATING and not left


COMMANDS: Final[Commands] = {
    "audit": AuditCommand,
    "allocations accept": AllocationsAccept,
    "allocations restore": AllocationsRestore,
}
