"""``placement-api``: the service under its bundled web server, gunicorn."""

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg

from placement.api import middleware
from placement.api.request_log import set_up_logging
from placement.cmd.common import check_bind
from placement.conf import PROJECT, new_config
from placement.conf.unknown import unknown_options
from placement.db import engine
from placement.read_model.model_file import preloaded_model
from placement.server.worker import BufferingWorker, BundledServer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = logging.getLogger(__name__)

CLI_OPTIONS: Final[Sequence[cfg.Opt]] = (
    cfg.StrOpt("bind", default="127.0.0.1:8778", help="ADDRESS:PORT or unix:PATH at which clients connect."),
    cfg.IntOpt("workers", default=2, min=1, help="Number of processes that answer requests."),
    cfg.IntOpt(
        "threads",
        default=4,
        min=1,
        help=(
            "Number of requests that each process serves at the same time. All requests of a process share"
            " one CPU: one request computes while others wait for answers of the database. At most half of"
            " these requests can be long searches for allocation candidates."
        ),
    ),
)

# agents keep their connections open between reports
_MAX_CONNECTIONS: Final = 10_000
"""Maximum number of connections of one worker, if the limit of open files allows this number."""
_SECONDS_TO_STOP: Final = 15
"""Maximum seconds for which a stopping worker continues to answer its current requests."""
# with this mask, only owner and group have permissions for a UNIX socket
_UMASK: Final = 0o117


def main(args: Sequence[str] | None = None) -> int:
    """Run ``placement-api`` until it is stopped; return the exit status."""
    try:
        conf = new_config(sys.argv[1:] if args is None else args, cli_opts=CLI_OPTIONS)
        check_bind(conf.bind)
    except (cfg.Error, ValueError) as error:
        print(f"placement-api: {error}", file=sys.stderr)
        return 1
    set_up_logging(conf, PROJECT)
    try:
        # the options are checked in the parent process, so that a wrong option causes only one message, and
        # not one message for each worker
        middleware.check_requirements(conf)
        engine.check_url(conf.placement_database.connection)
    except ValueError as error:
        print(f"placement-api: {error}", file=sys.stderr)
        return 1
    for warning in unknown_options(conf):
        LOG.warning("A part of the configuration has no effect: %s", warning)
    # the folder is made before the server forks its workers, so that all workers share it
    with middleware.shared_directory(conf):
        ApiServer(conf).run()
    return 0


class ApiServer(BundledServer):
    """The web server of the service. Each worker makes its own application after the fork."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        super().__init__()

    def settings(self) -> Mapping[str, Any]:
        """Return the settings of gunicorn, from the options of the service."""
        return {
            "bind": self._conf.bind,
            "workers": self._conf.workers,
            "threads": self._conf.threads,
            "worker_class": BufferingWorker,
            "worker_connections": _MAX_CONNECTIONS,
            "graceful_timeout": _SECONDS_TO_STOP,
            "umask": _UMASK,
            "proc_name": "placement-api",
        }

    def share_with_workers(self, count: int) -> AbstractContextManager[None]:
        """Return a context in which several workers start with one read model, if model_file is set."""
        path = self._conf.placement.model_file
        # if only one worker starts, it reads the file itself, so that the server can watch the other workers
        # meanwhile
        return preloaded_model(path) if path and count > 1 else nullcontext()

    def load(self) -> "WSGIApplication":
        """Return the application, which gunicorn loads in each worker."""
        # the database is prepared in the background, so that the worker can answer 503 while the database is
        # unreachable
        return middleware.build_application(self._conf, in_background=True, alone=True)


if __name__ == "__main__":
    sys.exit(main())
