"""gunicorn as the programs of this package start it."""

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from gunicorn import glogging
from gunicorn.app.base import BaseApplication

MAX_REQUEST_LINE: Final = 8190
"""As much as Apache httpd takes by default; lists of aggregates and traits in queries get long."""


class BundledServer(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn with settings of ours: no file and no environment changes them."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """What this server does beside what all of them do."""

    def load_config(self) -> None:
        """Called by gunicorn."""
        settings: dict[str, Any] = {
            "forwarder_headers": "",  # no client says where the service is mounted (SCRIPT_NAME)
            "limit_request_line": MAX_REQUEST_LINE,
            "logger_class": _ServerLogger,
            "control_socket_disable": True,  # it would lie in the home folder, one for all servers
            **self.settings(),
        }
        if "control_socket_disable" not in self.cfg.settings:  # before gunicorn 25.1
            del settings["control_socket_disable"]
        for name, value in settings.items():
            self.cfg.set(name, value)


class _ServerLogger(glogging.Logger):  # type: ignore[misc]  # as above
    """Leaves gunicorn's log records to the handlers that oslo.log has set up."""

    def setup(self, cfg: Any) -> None:
        """Called by gunicorn."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.setLevel(logging.NOTSET)
        self.error_log.propagate = True
