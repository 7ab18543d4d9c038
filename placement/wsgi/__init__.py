"""The service for web servers of others: uWSGI, mod_wsgi, gunicorn and their like."""

import io
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from oslo_log import log

from placement.api.middleware import build_application
from placement.conf import PROJECT, new_config
from placement.conf.unknown import unknown_options

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

_CHUNK_TIMEOUT: Final = 60
"""Seconds until the next chunk of a body."""


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


class ChunkedInput:
    """Gives ``app`` what follows ``Transfer-Encoding: chunked`` as the body.

    uWSGI leaves it to the application to ask for the chunks.

    :param read_chunk: the next chunk within so many seconds, empty at the end; OSError if there is none.
    """

    def __init__(self, app: "WSGIApplication", read_chunk: Callable[[int], bytes]) -> None:
        self._app = app
        self._read_chunk = read_chunk

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """WSGI."""
        if environ.get("HTTP_TRANSFER_ENCODING", "").strip().lower() == "chunked":
            environ["wsgi.input"] = io.BufferedReader(_ChunkReader(self._read_chunk))
            environ["wsgi.input_terminated"] = True
            environ.pop("CONTENT_LENGTH", None)  # chunks go before it (RFC 9112, 6.3)
        return self._app(environ, start_response)


class _ChunkReader(io.RawIOBase):
    """Chunk after chunk, as they are asked for."""

    def __init__(self, read_chunk: Callable[[int], bytes]) -> None:
        self._read_chunk = read_chunk
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """As of any file; 0 at the end."""
        if not self._left and not self._ended:
            self._left = memoryview(self._read_chunk(_CHUNK_TIMEOUT))
            self._ended = not self._left
        target = memoryview(buffer)
        taken = min(len(self._left), len(target))
        target[:taken] = self._left[:taken]
        self._left = self._left[taken:]
        return taken
