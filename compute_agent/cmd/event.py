"""Commands that list the stored decisions (events) of the agent. The commands need no daemon."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError
from compute_agent.cmd.base import AgentLister, Commands, local_time, parse_moment
from compute_agent.events.event import AgentEvent, EventKind
from compute_agent.events.store import FILE, read_events

# Tables leave out ids and uuids, which are for programs.
_FOR_PEOPLE: Final = ("time", "kind", "outcome", "text", "reason")
_COLUMNS: Final = ("id", "time", "kind", "outcome", "guest", "name", "text", "reason")

# short enough for a person that waits; each poll costs only a stat() of one file
_POLL_SECONDS: Final = 0.5


class _EventLister(AgentLister):
    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--follow",
            action="store_true",
            help="print the stored events, then a line for each new event until the command is"
            " interrupted; with -f json, each line is an object",
        )
        parser.add_argument(
            "--kind",
            action="append",
            choices=list(map(str, EventKind)),
            metavar="KIND",
            help=f"list only events of this kind: {', '.join(EventKind)}; may be given several times",
        )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """List the stored events, or follow new events until interrupted. Returns the exit status."""
        if not parsed_args.follow:
            return super().run(parsed_args)
        with contextlib.suppress(KeyboardInterrupt):
            try:
                for event in _followed_events(self._path(), parsed_args):
                    self.app.stdout.write(_event_line(event, as_json=parsed_args.formatter == "json"))
                    self.app.stdout.flush()
            except BrokenPipeError:  # the reading program, such as head, has ended
                # Python flushes standard output at its exit, and would print an error for the closed pipe.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the stored events, and select the requested events. Returns the columns and the rows."""
        for_people = parsed_args.formatter == "table"
        names = _FOR_PEOPLE if for_people else _COLUMNS
        events = read_events(self._path())
        found = _chosen_events(events, parsed_args)
        if not found:
            self.say_why_empty(self._why_empty(events, parsed_args))
        return names, [tuple(_shown_row(event, for_people)[name] for name in names) for event in found]

    def _why_empty(self, events: list[AgentEvent], wanted: argparse.Namespace) -> str:
        """The reason why the list is empty, as a sentence.

        :raises RequestError: no event of the guest is stored, and the daemon does not know the guest.
        """
        about = [event for event in events if _is_about(event, wanted.guest)]
        if not about and wanted.guest is not None:
            try:
                self.ask_daemon("guest.show", {"guest": wanted.guest})
            except (RequestError, DaemonUnreachableError) as error:
                raise RequestError(
                    f"The agent has stored no event of a guest {wanted.guest}: {error}"
                ) from error
        whom = "" if wanted.guest is None else f" of guest {wanted.guest}"
        if not about:
            return f"Nothing so far: no event{whom} is kept in {self._path()}."
        older = [event for event in about if not wanted.kind or event.kind in wanted.kind]
        if not older:
            return f"Nothing so far: no event{whom} of kind {' or '.join(wanted.kind)} is kept."
        latest = _shown_row(older[-1], True)["time"]
        return f"Nothing since then: the latest older event is of {latest}; see --since."

    def _path(self) -> Path:
        return Path(self.load_conf().state_path) / FILE


class EventList(_EventLister):
    """List the agent's decisions about guests and the host, each with its reason, the oldest decision first.

    The command reads the events that are stored on this host. The command needs no running daemon.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        parser.add_argument(
            "--guest", metavar="GUEST", help="list only events of this guest; uuid or name of the guest"
        )
        parser.add_argument(
            "--since",
            type=parse_moment,
            default="1d",
            metavar="TIME",
            help="start of the list: a length of time before now, such as 90, 30m, 1h or 7d, or a time,"
            " such as 2026-05-01T13:00; default: 1d",
        )


class GuestHistory(_EventLister):
    """List all stored decisions of the agent about a guest, each with its reason. The guest can have ended.

    The command reads the events that are stored on this host. The command needs no running daemon.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        super()._add_options(parser)
        parser.add_argument("guest", help="uuid or name")
        parser.set_defaults(since=0.0)


def _is_about(event: AgentEvent, guest: str | None) -> bool:
    return guest is None or guest in (event.guest, event.name)


def _chosen_events(events: list[AgentEvent], wanted: argparse.Namespace) -> list[AgentEvent]:
    return [
        event
        for event in events
        if event.time >= wanted.since
        and _is_about(event, wanted.guest)
        and (not wanted.kind or event.kind in wanted.kind)
    ]


def _followed_events(path: Path, wanted: argparse.Namespace) -> Iterator[AgentEvent]:
    """Yield the stored events since a time, and then each new event when it is stored."""
    last, seen = 0, None
    while True:
        present = _file_identity(path)
        # An unchanged file is not read again: most polls find no new event.
        if present != seen:
            events = read_events(path)
            if events and events[-1].id < last:
                last = 0  # the files were removed, so the ids begin again at 1
            yield from _chosen_events([event for event in events if event.id > last], wanted)
            last = max([last, *(event.id for event in events[-1:])])
            seen = present
        time.sleep(_POLL_SECONDS)


def _file_identity(path: Path) -> tuple[int, int] | None:
    """The inode and size of a file; each write changes one of them. None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size


def _shown_row(event: AgentEvent, for_people: bool) -> dict[str, Any]:
    return {**asdict(event), "time": local_time(event.time, for_people, "milliseconds")}


def _event_line(event: AgentEvent, as_json: bool) -> str:
    if as_json:
        return json.dumps({name: _shown_row(event, False)[name] for name in _COLUMNS}) + "\n"
    shown = _shown_row(event, True)
    reason = f" ({event.reason})" if event.reason else ""
    return f"{shown['time']} {event.kind} {event.outcome}: {event.text}{reason}\n"


COMMANDS: Final[Commands] = {"event list": EventList, "guest history": GuestHistory}
