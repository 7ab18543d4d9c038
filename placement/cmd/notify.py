"""The command ``placement-manage windows notify``."""

import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path
from typing import Final

from oslo_config import cfg

from placement.cmd.common import open_database
from placement.exceptions import Unavailable
from placement.notifications.notifier import ROUND_PAUSE, EventNotifier
from placement.notifications.position_file import PositionFile
from placement.notifications.webhook import DeliveryFailed, EventWebhook
from placement.schemas.time_events import DEFAULT_NOTICE, MAX_INTERVAL

_ONCE_ATTEMPTS: Final = 5
"""Maximum number of attempts to send one event with ``--once``."""


def add_notify_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``windows notify``."""
    parser.add_argument("--url", required=True, help="http or https URL to which each event is sent by POST")
    parser.add_argument(
        "--state",
        required=True,
        type=Path,
        metavar="FILE",
        help="file that records the last delivered event; if the file does not exist, only events from now on"
        " are delivered",
    )
    parser.add_argument(
        "--notice",
        type=int,
        default=DEFAULT_NOTICE,
        metavar="SECONDS",
        help="seconds by which the announcement of a start or an end precedes it (default: %(default)s)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help=f"deliver the events since the last call, and exit; after {_ONCE_ATTEMPTS} failed attempts for"
        " an event, exit with status 1",
    )


def notify_webhook(conf: cfg.ConfigOpts, arguments: Namespace) -> int:
    """Send starts and ends of windows, and ends of claims, to a webhook: in order, and each at least once.

    A window is a reservation with a start. Claims without an action at their end (on_end) are left out.
    """
    if not 0 <= arguments.notice <= MAX_INTERVAL:
        raise ValueError(f"--notice has to be a number of seconds from 0 to {MAX_INTERVAL:.0f}")
    webhook, file = EventWebhook(arguments.url), PositionFile(arguments.state)
    with file.hold_lock(), open_database(conf) as database:
        notifier = EventNotifier(
            database,
            file,
            webhook.post_document,
            time.sleep,
            _report_line,
            arguments.notice,
            _ONCE_ATTEMPTS if arguments.once else None,
        )
        if arguments.once:
            return _run_once(notifier)
        # the command can be stopped at any moment, because no event is lost
        with suppress(KeyboardInterrupt):
            _run_forever(notifier)
    return 0


def _run_once(notifier: EventNotifier) -> int:
    try:
        while not notifier.run_round():
            pass
    except DeliveryFailed as error:
        _report_line(f"{error} The next call begins with this event.")
        return 1
    return 0


def _run_forever(notifier: EventNotifier) -> None:
    while True:
        try:
            is_present = notifier.run_round()
        except Unavailable as error:
            _report_line(f"{error} The next round is in {ROUND_PAUSE:g} seconds.")
            is_present = True
        if is_present:
            notifier.pause(ROUND_PAUSE)


def _report_line(text: str) -> None:
    print(f"placement-manage: {text}", file=sys.stderr, flush=True)
