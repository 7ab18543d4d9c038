"""The service for other web servers: uWSGI, mod_wsgi, gunicorn and similar ones."""

import logging
from typing import TYPE_CHECKING, Any

from oslo_log import log

from placement.api.middleware import build_application
from placement.conf import PROJECT, new_config
from placement.conf.unknown import unknown_options
from placement.wsgi.chunked import ChunkedInput

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = logging.getLogger(__name__)


def init_application() -> "WSGIApplication":
    """Return the application that the environment and the configuration files describe.

    The environment variable ``OS_PLACEMENT_CONFIG_DIR`` names the folder of ``placement.conf``. Logging is
    set up, too, and warns of unknown options.

    :raises oslo_config.cfg.Error: the configuration cannot be used.
    :raises ValueError: the configuration cannot be used.
    """
    conf = new_config()
    log.setup(conf, PROJECT)
    uwsgi = _uwsgi_module()
    # one worker is enough to log what is the same for all
    if uwsgi is None or uwsgi.worker_id() <= 1:
        for warning in unknown_options(conf):
            LOG.warning("%s", warning)
    application = build_application(conf, alone=True)
    return application if uwsgi is None else ChunkedInput(application, uwsgi.chunked_read)


def _uwsgi_module() -> Any:
    """Return uWSGI's module for the applications in its processes; None elsewhere."""
    try:
        import uwsgi
    except ImportError:
        return None
    return uwsgi
