"""The program ``placement-shadow``: a trial of this service beside OpenStack Placement."""

import logging
import multiprocessing
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from oslo_config import cfg
from oslo_log import log

from placement.cmd.common import check_bind, warn_of_password, warn_of_secret
from placement.conf import PROJECT, new_config
from placement.exceptions import ServiceError
from placement.maintenance.sync import incomplete_owner
from placement_extras.shadow import copied_databases
from placement_extras.shadow.copied_databases import CopiedDatabases
from placement_extras.shadow.follower import FollowerSettings, run_follower
from placement_extras.shadow.proxy import SECONDS_TO_STOP, ProxySettings, run_proxy

LOG = logging.getLogger(__name__)

CLI_OPTIONS: Final[Sequence[cfg.Opt]] = (
    cfg.StrOpt("bind", default="127.0.0.1:8777", help="ADDRESS:PORT at which clients connect."),
    cfg.StrOpt("stock", help="URL of OpenStack Placement, which answers all requests of clients."),
    cfg.StrOpt("ours", help="URL of this service, to which placement-shadow sends the same requests."),
    cfg.StrOpt(
        "stock-database",
        secret=True,
        help=(
            "SQLAlchemy URL of OpenStack Placement's database. The program copies this database at its start"
            " into the database of [placement_database] connection. Without this option, copy the database"
            " by hand before the start. Then make sure that clients write nothing between this copy and the"
            " time when all of them use the address of placement-shadow. Write a URL with a password into a"
            " file for --config-file, as stock_database in section [DEFAULT]."
        ),
    ),
    cfg.FloatOpt(
        "copy-after",
        default=0.0,
        min=0.0,
        help="Seconds that placement-shadow waits after its start before it copies the database. At the end"
        " of this time, all clients must use the address of placement-shadow.",
    ),
    cfg.StrOpt(
        "ours-token",
        secret=True,
        help=(
            "Token that placement-shadow sends to this service instead of the clients' tokens. If this"
            " service runs with noauth2, the token is the word admin. Write any other token into a file for"
            " --config-file, as ours_token in section [DEFAULT]."
        ),
    ),
    cfg.StrOpt(
        "report-bind",
        default="127.0.0.1:8779",
        help="ADDRESS:PORT at which placement-shadow serves the report and the metrics.",
    ),
    cfg.IntOpt(
        "threads",
        default=32,
        min=1,
        help="Maximum number of requests that placement-shadow handles at the same time.",
    ),
    cfg.FloatOpt(
        "stock-timeout",
        default=300.0,
        min=1.0,
        help="Seconds that placement-shadow waits for an answer of OpenStack Placement. After this time, the"
        " client gets the error 502.",
    ),
)


def main(args: Sequence[str] | None = None) -> int:
    """Run ``placement-shadow`` until it is stopped; return the exit status."""
    arguments = sys.argv[1:] if args is None else list(args)
    try:
        conf = new_config(arguments, cli_opts=CLI_OPTIONS)
        settings = _settings(conf)
        check_bind(conf.bind)
        check_bind(conf.report_bind)
        if settings.databases is not None:
            copied_databases.check_databases(settings.databases)
    except (cfg.Error, ValueError, ServiceError) as error:
        print(f"placement-shadow: {error}", file=sys.stderr)
        return 1
    log.setup(conf, PROJECT)
    proxy = ProxySettings(conf.bind, conf.stock, conf.threads, conf.stock_timeout)
    with tempfile.TemporaryDirectory(prefix="placement-shadow-") as folder:
        return _run_processes(settings, proxy, str(Path(folder) / "copies"), partial(_set_up_log, arguments))


def _set_up_log(arguments: Sequence[str]) -> None:
    """Set up logging in a child process. A spawned process does not inherit the logging of its parent."""
    log.setup(new_config(arguments, cli_opts=CLI_OPTIONS), PROJECT)


def _run_processes(
    settings: FollowerSettings, proxy: ProxySettings, address: str, set_up_log: Callable[[], None]
) -> int:
    """Run the proxy and the follower in two processes until stopped; return the exit status.

    The follower is a separate process, so that the comparison of answers does not slow down the answers to
    clients. The two processes end when this process ends.
    """
    # children are spawned. A forked child would keep ends of the other child's pipe open, so that its reader
    # would not notice the end of this process.
    context = multiprocessing.get_context("spawn")
    # unpickling can execute code, so the follower accepts copies only from a process that has this key
    key = secrets.token_bytes()
    processes, controls = [], []
    for target, its_settings in ((run_follower, settings), (run_proxy, proxy)):
        theirs, ours = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(its_settings, address, key, theirs, set_up_log))
        process.start()
        theirs.close()  # only the child needs this end of the pipe
        processes.append(process)
        controls.append(ours)
    follower, server = processes
    stopped, stop = context.Pipe(duplex=False)
    # a signal handler can interrupt the main thread at any point, so this one only ends the wait below
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.send_bytes(b"."))
    try:
        ended = wait([stopped, follower.sentinel, server.sentinel])
        if ended == [follower.sentinel]:
            LOG.error(
                "The comparing process ended: requests are passed on, but not compared. Start"
                " placement-shadow again"
            )
            ended = wait([stopped, server.sentinel])
        return 0 if stopped in ended else 1
    finally:
        # the proxy ends first, because it sends its last copies to the follower
        for process, control in ((server, controls[1]), (follower, controls[0])):
            control.close()
            # requests in flight can take SECONDS_TO_STOP. The process itself has 5 more seconds to end.
            process.join(SECONDS_TO_STOP + 5)
            if process.is_alive():
                process.kill()
                process.join()


def _is_argument(conf: cfg.ConfigOpts, name: str) -> bool:
    """Return whether an option is set on the command line, which each user of the machine can see."""
    found = conf.get_location(name)
    return found is not None and found.location is cfg.Locations.command_line


def _settings(conf: cfg.ConfigOpts) -> FollowerSettings:
    """Return the settings of the comparing process; raise ValueError if an option has a wrong value."""
    for name in ("stock", "ours"):
        parts = urlsplit(conf[name] or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--{name} has to be an http or https URL, not {conf[name]!r}")
        # a password in the URL is refused: it would not reach the service, and errors show the URL to clients
        if parts.username or parts.password:
            raise ValueError(f"--{name} takes no user and no password in its URL: clients send tokens")
    host, _, port = conf.report_bind.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"--report-bind has to be ADDRESS:PORT, not {conf.report_bind!r}")
    if conf.ours_token and _is_argument(conf, "ours_token"):
        warn_of_secret(
            "placement-shadow",
            "--ours-token",
            "a token",
            "write ours_token into section [DEFAULT] of a file for --config-file.",
        )
    databases = None
    if conf.stock_database:
        if _is_argument(conf, "stock_database"):
            warn_of_password(
                "placement-shadow",
                "--stock-database",
                conf.stock_database,
                "write stock_database into section [DEFAULT] of a file for --config-file.",
            )
        databases = CopiedDatabases(
            conf.stock_database,
            conf.placement_database.connection,
            incomplete_owner(conf),
            tuple(conf.placement.additional_resource_classes),
        )
    # an IPv6 address has brackets on the command line, but not in the address of a server
    return FollowerSettings(
        conf.ours, conf.ours_token, databases, conf.copy_after, (host.strip("[]"), int(port))
    )


if __name__ == "__main__":
    sys.exit(main())
