"""``placement-manage audit`` and ``heal``: find and repair what contradicts itself in the database."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, Final

from oslo_config import cfg

from placement.cmd.common import open_database, print_json, print_table
from placement.maintenance.audit import DatabaseFinding
from placement.maintenance.audit import audit as find_all
from placement.maintenance.heal import heal as repair
from placement.maintenance.sync import incomplete_owner

FINDINGS: Final = 3
"""The exit status when something is wrong with the data and not with the command."""


def add_audit_arguments(parser: ArgumentParser) -> None:
    """The command line of ``audit``."""
    parser.add_argument(
        "-f", "--format", choices=("table", "json"), default="table", help="output for people or for programs"
    )


def add_heal_arguments(parser: ArgumentParser) -> None:
    """The command line of ``heal``."""
    add_audit_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be repaired and write nothing")


def audit(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """List what contradicts itself in the database; the exit status is 0 for nothing, 3 for something."""
    with open_database(conf) as database, database.read() as conn:
        findings = find_all(conn)
    if arguments.format == "json":
        print_json({"findings": _documents(findings)})
    else:
        _print_findings("Nothing is wrong.", findings)
    return FINDINGS if findings else 0


def heal(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Repair what can be without losing an allocation; the exit status is 3 when something remains."""
    with open_database(conf) as database:
        healed = repair(database, incomplete_owner(conf), dry_run=arguments.dry_run)
    if arguments.format == "json":
        print_json({"repaired": _documents(healed.repaired), "remaining": _documents(healed.remaining)})
    else:
        print("Would be repaired:" if arguments.dry_run else "Repaired:")
        _print_findings("Nothing.", healed.repaired)
        print("Remains:")
        _print_findings("Nothing.", healed.remaining)
    return FINDINGS if healed.remaining else 0


def _documents(findings: Sequence[DatabaseFinding]) -> list[dict[str, Any]]:
    return [
        {
            "problem": str(finding.problem),
            "subject": finding.subject,
            "detail": finding.detail,
            "healable": finding.problem.healable,
        }
        for finding in findings
    ]


def _print_findings(nothing: str, findings: Sequence[DatabaseFinding]) -> None:
    if not findings:
        print(nothing)
        return
    rows = [(str(each.problem), each.subject, each.detail, each.problem.healable) for each in findings]
    print_table(
        ("Problem", "Subject", "Detail", "Healable"),
        [(*texts, "yes" if healable else "no") for *texts, healable in rows],
    )
