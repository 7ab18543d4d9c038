"""Chunked bodies under uWSGI, which leaves reading the chunks to the application."""

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_SECONDS: Final = 60
"""Seconds until the next chunk."""


class ChunkedInput:
    """Passes a chunked body to ``app`` as a file.

    :param read_chunk: returns the next chunk, empty at the end; its argument is a timeout in seconds. It
        raises OSError if no chunk comes.
    """

    def __init__(self, app: "WSGIApplication", read_chunk: Callable[[int], bytes]) -> None:
        self._app = app
        self._read_chunk = read_chunk

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Call the application, with the body replaced if it is chunked (WSGI)."""
        if environ.get("HTTP_TRANSFER_ENCODING", "").strip().lower() == "chunked":
            environ["wsgi.input"] = io.BufferedReader(_ChunkReader(self._read_chunk))
            environ["wsgi.input_terminated"] = True
            # a Content-Length beside chunks is ignored (RFC 9112, 6.3)
            environ.pop("CONTENT_LENGTH", None)
        return self._app(environ, start_response)


class _ChunkReader(io.RawIOBase):
    """Reads chunk after chunk, on demand."""

    def __init__(self, read_chunk: Callable[[int], bytes]) -> None:
        self._read_chunk = read_chunk
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """Return True, as every input can be read."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read into the buffer; return the number of bytes, 0 at the end."""
        if not self._left and not self._ended:
            self._left = memoryview(self._read_chunk(_SECONDS))
            self._ended = not self._left
        target = memoryview(buffer)
        taken = min(len(self._left), len(target))
        target[:taken] = self._left[:taken]
        self._left = self._left[taken:]
        return taken
