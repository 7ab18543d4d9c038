"""Bodies in chunks under uWSGI, which leaves it to the application to ask for the chunks."""

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_SECONDS: Final = 60
"""Until the next chunk."""


class ChunkedInput:
    """Gives ``app`` what follows ``Transfer-Encoding: chunked`` as the body.

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
            self._left = memoryview(self._read_chunk(_SECONDS))
            self._ended = not self._left
        target = memoryview(buffer)
        taken = min(len(self._left), len(target))
        target[:taken] = self._left[:taken]
        self._left = self._left[taken:]
        return taken
