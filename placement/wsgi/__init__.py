"""The service for web servers of others: uWSGI, mod_wsgi, gunicorn and their like."""

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
    """The service as the environment and the configuration files describe it.

    The environment variable ``OS_PLACEMENT_CONFIG_DIR`` says where
    ``placement.conf`` is. Logging is set up too, and says which options there are not.

    :raises oslo_config.cfg.Error: the configuration cannot be used.
    :raises ValueError: likewise.
    """
    conf = new_config()
    log.setup(conf, PROJECT)
    uwsgi = _uwsgi()
    if uwsgi is None or uwsgi.worker_id() <= 1:  # of its workers the first tells what is the same for all
        for warning in unknown_options(conf):
            LOG.warning("%s", warning)
    application = build_application(conf, alone=True)
    return application if uwsgi is None else ChunkedInput(application, uwsgi.chunked_read)


def _uwsgi() -> Any:
    """What uWSGI offers to the applications in its processes; None elsewhere."""
    try:
        import uwsgi
    except ImportError:
        return None
    return uwsgi
