"""The service for web servers of others: uWSGI, mod_wsgi, gunicorn and their like."""

from typing import TYPE_CHECKING

from oslo_log import log

from placement.api.middleware import build_application
from placement.conf import PROJECT, new_config

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


def init_application() -> "WSGIApplication":
    """The service as the environment and the configuration files describe it.

    The environment variable ``OS_PLACEMENT_CONFIG_DIR`` says where
    ``placement.conf`` is. Logging is set up too.
    """
    conf = new_config()
    log.setup(conf, PROJECT)
    return build_application(conf)
