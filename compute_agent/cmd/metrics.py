"""Commands about the use of caches and memory bandwidth by guests and classes.

These commands read the stored samples, and need no daemon.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import stevedore
from cliff.formatters.base import ListFormatter

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError
from compute_agent.cmd.base import AgentLister, Commands, offer_formats, parse_moment
from compute_agent.drawing.host import format_size
from compute_agent.monitoring.history import HistoryError, SampleHistory, TimeSpan, plot_samples
from compute_agent.monitoring.samples import FILE, StoredSample

# The columns are in the order of the values of _use_values().
USE: Final = ("llc_occupancy_bytes", "local_bytes_per_second", "total_bytes_per_second", "cpu_cores")


class MetricsShow(AgentLister):
    """Show the use of caches and memory bandwidth by a guest or class.

    Without a name, show the last values of all guests and classes.

    The command reads the samples that are stored on this host. The command needs no running daemon.
    """

    def _load_formatter_plugins(self) -> stevedore.ExtensionManager[ListFormatter]:
        manager = super()._load_formatter_plugins()
        offer_formats(manager, "svg")
        return manager

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the command's options."""
        parser = super().get_parser(prog_name)
        parser.add_argument("guest", nargs="?", metavar="GUEST", help="uuid or name of a guest, or a class")
        parser.add_argument(
            "--since",
            type=parse_moment,
            default="1h",
            metavar="TIME",
            help="start: a length of time before now, such as 90, 30m, 1h or 7d, or a time, such as"
            " 2026-05-01T13:00; default: 1h",
        )
        parser.add_argument(
            "--until",
            type=parse_moment,
            default="0",
            metavar="TIME",
            help="end, in the format of --since; default: now",
        )
        parser.add_argument("--svg", metavar="FILE", type=Path, help="also write a picture to FILE")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Read the stored samples, and draw them if a picture is wanted. Returns the columns and the rows."""
        drawing = parsed_args.svg is not None or parsed_args.formatter == "svg"
        if drawing and not parsed_args.guest:
            raise HistoryError("a picture shows one guest or class: name it")
        path = Path(self.load_conf().state_path) / FILE
        for_people = parsed_args.formatter == "table"
        if not path.is_file():
            raise HistoryError(f"there are no samples in {path}: {self._reason_for_none()}")
        history = SampleHistory(path)
        if not parsed_args.guest:
            if not (rows := _last_sample(history, for_people)):
                raise HistoryError(f"there are no samples in {path}: {self._reason_for_none()}")
            return ("guest", "name", "class", "time", *USE), rows
        span = TimeSpan(parsed_args.since, parsed_args.until)
        if span.until < span.since:
            raise HistoryError("the time to show ends before it begins: see --since and --until")
        samples = history.samples_of(parsed_args.guest, span)
        if not samples:
            since, until = (_local_time(at, for_people=True) for at in (span.since, span.until))
            raise HistoryError(f"there are no samples of {parsed_args.guest} from {since} to {until}")
        picture = plot_samples(samples, span) if drawing else ""
        if parsed_args.svg is not None:
            parsed_args.svg.write_text(picture)
        if parsed_args.formatter == "svg":
            return ("svg",), [(picture,)]
        rows = [
            (_local_time(one.time, for_people), one.cache_id, *_use_values(one, for_people))
            for one in samples
        ]
        return ("time", "cache_id", *USE), rows

    def _reason_for_none(self) -> str:
        """The reason why this host has no stored samples."""
        if not self.load_conf().monitoring.store_interval:
            return "[monitoring] store_interval = 0 keeps none"
        try:
            monitoring = self.ask_daemon("status")["cache_monitoring"]
        except (DaemonUnreachableError, RequestError) as error:
            return str(error)
        if monitoring != "on":
            return f"cache_monitoring is {monitoring}"
        return "the agent has not seen a guest or class with counters for [monitoring] store_interval so far"


def _last_sample(history: SampleHistory, for_people: bool) -> list[tuple[Any, ...]]:
    rows = []
    for one in history.latest_together():
        use = _use_values(one, for_people)
        rows.append((one.guest, one.name, one.qos_class, _local_time(one.time, for_people), *use))
    return rows


def _local_time(time: float, for_people: bool) -> str:
    local = datetime.fromtimestamp(time).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}" if for_people else local.isoformat(timespec="seconds")


def _use_values(sample: StoredSample, for_people: bool) -> tuple[Any, ...]:
    """The values of the columns ``USE``: texts with units for people, numbers for programs."""
    occupancy, rates, cpu = sample.occupancy, (sample.local, sample.total), sample.cpu
    if for_people:
        return (
            "" if occupancy is None else format_size(round(occupancy / 1024)),
            *("" if rate is None else f"{rate / 1e6:.1f} MB/s" for rate in rates),
            "" if cpu is None else f"{cpu:.2f}",
        )
    return occupancy, *(None if rate is None else round(rate) for rate in rates), cpu


COMMANDS: Final[Commands] = {"metrics show": MetricsShow}
