"""Commands about the use of CPUs, caches and memory bandwidth: ``metrics show``, and the screen of ``top``.

The samples are those that the agent has stored, so ``metrics show`` needs no daemon.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import stevedore
from cliff.formatters.base import ListFormatter

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, call_agent, socket_path
from compute_agent.cmd.base import (
    AgentCommand,
    AgentLister,
    Commands,
    local_time,
    offer_formats,
    parse_moment,
)
from compute_agent.drawing.host import format_size
from compute_agent.drawing.top import ORDERS, AgentSnapshot, ShownUse, screen_lines
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

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
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
            since, until = (local_time(at, for_people=True) for at in (span.since, span.until))
            raise HistoryError(f"there are no samples of {parsed_args.guest} from {since} to {until}")
        picture = plot_samples(samples, span) if drawing else ""
        if parsed_args.svg is not None:
            parsed_args.svg.write_text(picture)
        if parsed_args.formatter == "svg":
            return ("svg",), [(picture,)]
        rows = [
            (local_time(one.time, for_people), one.cache_id, *_use_values(one, for_people)) for one in samples
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
        rows.append((one.guest, one.name, one.qos_class, local_time(one.time, for_people), *use))
    return rows


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


_OLDEST_SAMPLE: Final = 120.0
"""Maximum age in seconds of the samples that the screen shows."""
# Escape sequences of xterm: switch to the alternate screen without a cursor, and switch back.
_SCREEN, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


class TopCommand(AgentCommand):
    """Show guests with their CPUs, cache ways and bandwidth, and the watermarks, until the key q is pressed.

    If the output is a file or a pipe, the command prints the screen once.
    """

    def _add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--interval",
            type=_positive_seconds,
            default=2.0,
            metavar="SECONDS",
            help="seconds between two updates; default: 2",
        )
        parser.add_argument("--sort", choices=ORDERS, default="cpu", help="order of guests; default: cpu")
        parser.add_argument("--once", action="store_true", help="print the whole screen once")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Show the screen until a key ends it, or print it once."""
        out, conf = self.app.stdout, self.load_conf()
        look = partial(_read_agent, partial(call_agent, socket_path(conf)), Path(conf.state_path) / FILE)
        if parsed_args.once or not (out.isatty() and sys.stdin.isatty()):
            # A file or pipe has no width, so its lines are not cut at the width of a terminal.
            width = shutil.get_terminal_size((200, 0)).columns if out.isatty() else 1000
            lines = screen_lines(look(), parsed_args.sort, width, sys.maxsize)
            out.write("".join(f"{line}\n" for line in lines))
            return
        with _own_screen(out), contextlib.suppress(KeyboardInterrupt):
            while True:
                width, height = shutil.get_terminal_size()
                lines = screen_lines(look(), parsed_args.sort, width, height)
                out.write(_HOME + f"{_REST_OF_LINE}\r\n".join(lines) + _REST_OF_LINE + _REST)
                out.flush()
                if _wants_to_leave(parsed_args.interval):
                    return


def _read_agent(tell: Callable[[str], Any], samples: Path) -> AgentSnapshot:
    """The current answers of the agent, and the last samples of its guests.

    :param tell: sends a request to the daemon, and returns the answer. The argument is the name of the
        request.
    """
    now = time.strftime("%H:%M:%S")
    try:
        status, guests, watermarks = tell("status"), tell("guest.list"), tell("watermark.list")
    except (DaemonUnreachableError, RequestError) as error:
        return AgentSnapshot(now, trouble=str(error))
    groups: list[dict[str, Any]] = []
    # this request fails if the host has no resctrl; the status shows the reason
    with contextlib.suppress(RequestError):
        groups = tell("resctrl.groups")
    return AgentSnapshot(now, status, guests, watermarks, groups, _guest_uses(samples))


def _guest_uses(file: Path) -> dict[str, ShownUse]:
    """The last use of guests by uuid. Guests without a recent sample are left out."""
    try:
        latest = SampleHistory(file).latest_together()
    except HistoryError:
        return {}
    oldest = time.time() - _OLDEST_SAMPLE
    return {
        one.guest: ShownUse(one.cpu, one.occupancy, one.total)
        for one in latest
        if one.guest and one.time > oldest
    }


@contextlib.contextmanager
def _own_screen(out: Any) -> Iterator[None]:
    """Switch the terminal to a second screen without line buffering, and restore it at the end."""
    before = termios.tcgetattr(sys.stdin)
    out.write(_SCREEN)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        out.write(_BACK)
        out.flush()


def _wants_to_leave(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    # The escape key and the end of the input end the command, too.
    return bool(ready) and sys.stdin.read(1) in ("q", "Q", "\x1b", "")


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.2 to 3600")
    return seconds


COMMANDS: Final[Commands] = {"metrics show": MetricsShow, "top": TopCommand}
