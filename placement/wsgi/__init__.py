"""The service for web servers of others: uWSGI, mod_wsgi, gunicorn and their like."""

import logging
from typing import TYPE_CHECKING

from oslo_log import log

from placement.api.middleware import build_application
from placement.conf import PROJECT, new_config
from placement.conf.unknown import unknown_options

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
    if _is_first():
        for warning in unknown_options(conf):
            LOG.warning("%s", warning)
    return build_application(conf)


def _is_first() -> bool:
    """Whether this worker tells what is the same for all: uWSGI numbers them from 1, others do not tell."""
    try:
        import uwsgi  # only there in its own processes
    except ImportError:
        return True
    return bool(uwsgi.worker_id() <= 1)
