"""Makes the service a WSGI application for other web servers, such as uWSGI, mod_wsgi and gunicorn."""

import io
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from placement.api.middleware import build_application
from placement.api.request_log import set_up_logging
from placement.conf import PROJECT, new_config
from placement.conf.unknown import unknown_options

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

_CHUNK_TIMEOUT: Final = 60
"""The maximum number of seconds until the next chunk of a request's body arrives."""


def init_application() -> "WSGIApplication":
    """Return the application that the environment and the configuration files describe.

    The environment variable ``OS_PLACEMENT_CONFIG_DIR`` has the path of the folder of ``placement.conf``.
    This function also sets up logging, and warns of unknown options.

    :raises oslo_config.cfg.Error: the configuration files are invalid.
    :raises ValueError: the service cannot use the value of an option.
    """
    conf = new_config()
    set_up_logging(conf, PROJECT)
    uwsgi = _uwsgi_module()
    # only one worker logs the warnings, because they are the same for all workers
    if uwsgi is None or uwsgi.worker_id() <= 1:
        for warning in unknown_options(conf):
            LOG.warning("A part of the configuration has no effect: %s", warning)
    application = build_application(conf, alone=True)
    return application if uwsgi is None else ChunkedInput(application, uwsgi.chunked_read)


def _uwsgi_module() -> Any:
    """Return the module that uWSGI gives to its applications; None in other servers."""
    try:
        import uwsgi
    except ImportError:
        return None
    return uwsgi


class ChunkedInput:
    """Passes a chunked body to ``app`` as a file, because uWSGI does not decode chunks for applications.

    :param read_chunk: a function that returns the next chunk, and at the end of the body no bytes. Its
        argument is a timeout in seconds. The function raises OSError if no chunk arrives in time.
    """

    def __init__(self, app: "WSGIApplication", read_chunk: Callable[[int], bytes]) -> None:
        self._app = app
        self._read_chunk = read_chunk

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Call the application; if the body is chunked, pass the body as a file."""
        if environ.get("HTTP_TRANSFER_ENCODING", "").strip().lower() == "chunked":
            environ["wsgi.input"] = io.BufferedReader(_ChunkReader(self._read_chunk))
            # the variable tells Flask that the body has an end, although the request has no Content-Length
            environ["wsgi.input_terminated"] = True
            # if the body is chunked, a Content-Length has no meaning (RFC 9112, 6.3)
            environ.pop("CONTENT_LENGTH", None)
        return self._app(environ, start_response)


class _ChunkReader(io.RawIOBase):
    """A file that reads the next chunk when it needs more bytes."""

    def __init__(self, read_chunk: Callable[[int], bytes]) -> None:
        self._read_chunk = read_chunk
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """Return True, because a caller can read the file."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read bytes into the buffer; return the number of bytes, which is 0 at the end of the body."""
        if not self._left and not self._ended:
            self._left = memoryview(self._read_chunk(_CHUNK_TIMEOUT))
            self._ended = not self._left
        target = memoryview(buffer)
        taken = min(len(self._left), len(target))
        target[:taken] = self._left[:taken]
        self._left = self._left[taken:]
        return taken
