"""The command ``compute-agent top``, which shows guests and watermarks until a key is pressed."""

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

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, call_agent, socket_path
from compute_agent.cmd.base import AgentCommand, Commands
from compute_agent.drawing.top import ORDERS, AgentSnapshot, ShownUse, screen_lines
from compute_agent.monitoring.history import HistoryError, SampleHistory
from compute_agent.monitoring.samples import FILE

_OLDEST_SAMPLE: Final = 120.0
"""Maximum age in seconds of the samples that the screen shows."""
# Escape sequences of xterm: switch to the alternate screen without a cursor, and switch back.
_SCREEN, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


class TopCommand(AgentCommand):
    """Show guests with their CPUs, cache ways and bandwidth, and the watermarks, until the key q is pressed.

    If the output is a file or a pipe, the command prints the screen once.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""
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
    :param samples: the file with the stored samples.
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


COMMANDS: Final[Commands] = {"top": TopCommand}
