"""``placement-api``: the service under its bundled web server, gunicorn."""

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from gunicorn import glogging
from gunicorn.app.base import BaseApplication
from oslo_config import cfg
from oslo_log import log

from placement.api import auth
from placement.api.middleware import build_application
from placement.cmd.listening import check_bind
from placement.conf import PROJECT, new_config
from placement.conf.unknown import unknown_options
from placement.server.worker import GatheringWorker

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = logging.getLogger(__name__)

CLI_OPTIONS: Final[Sequence[cfg.Opt]] = (
    cfg.StrOpt("bind", default="127.0.0.1:8778", help="ADDRESS:PORT or unix:PATH to listen on."),
    cfg.IntOpt("workers", default=2, min=1, help="How many processes answer requests."),
    cfg.IntOpt(
        "threads",
        default=4,
        min=1,
        help=(
            "How many requests each process has in hand: some wait for the database, one computes. "
            "Half of them may be long searches for allocation candidates."
        ),
    ),
)

# As much as Apache httpd takes by default; lists of aggregates and traits in queries get long.
MAX_REQUEST_LINE: Final = 8190
_SECONDS_TO_STOP: Final = 15
_UMASK: Final = 0o117  # a socket in the file system is for the owner and the group


def main(args: Sequence[str] | None = None) -> int:
    """Serve until stopped; the exit status."""
    try:
        conf = new_config(sys.argv[1:] if args is None else args, cli_opts=CLI_OPTIONS)
        check_bind(conf.bind)
    except (cfg.Error, ValueError) as error:
        print(f"placement-api: {error}", file=sys.stderr)
        return 1
    log.setup(conf, PROJECT)
    try:
        auth.check(conf)
    except ValueError as error:
        print(f"placement-api: {error}", file=sys.stderr)
        return 1
    for warning in unknown_options(conf):
        LOG.warning("%s", warning)
    Server(conf).run()
    return 0


class Server(BaseApplication):  # type: ignore[misc]
    """gunicorn with one application per worker, made after the worker was forked.

    So no connection to a database is ever shared by two processes.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn: its settings from ours."""
        settings: dict[str, Any] = {
            "bind": self._conf.bind,
            "workers": self._conf.workers,
            "threads": self._conf.threads,
            "worker_class": GatheringWorker,
            "graceful_timeout": _SECONDS_TO_STOP,
            "forwarder_headers": "",  # no client says where the service is mounted (SCRIPT_NAME)
            "umask": _UMASK,
            "limit_request_line": MAX_REQUEST_LINE,
            "logger_class": _Logger,
            "proc_name": "placement-api",
        }
        if (
            "control_socket_disable" in self.cfg.settings
        ):  # it would lie in the home folder, one for all servers
            settings["control_socket_disable"] = True
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> "WSGIApplication":
        """Called by gunicorn in each worker: the application."""
        return build_application(self._conf, in_background=True)


class _Logger(glogging.Logger):  # type: ignore[misc]
    """Leaves gunicorn's log records to the handlers that oslo.log has set up."""

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.setLevel(logging.NOTSET)
        self.error_log.propagate = True


if __name__ == "__main__":
    sys.exit(main())
