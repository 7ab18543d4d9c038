"""Bodies that a web server reads piece by piece, and finds to be malformed while it does."""

import io
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

from werkzeug.exceptions import BadRequest

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def check_chunks(app: "WSGIApplication") -> "WSGIApplication":
    """The application, to which a chunked body that cannot be read is a bad request."""

    def serve(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if environ.get("HTTP_TRANSFER_ENCODING"):
            environ["wsgi.input"] = io.BufferedReader(_FileChunks(environ["wsgi.input"]))
        return app(environ, start_response)

    return serve


class _FileChunks(io.RawIOBase):
    """What another file gives."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """As of any file.

        :raises BadRequest: the web server could not read the body.
        """
        target = memoryview(buffer)
        try:
            piece = self._source.read(len(target))
        except (
            Exception
        ) as error:  # each web server has errors of its own for a malformed chunk, and a lost client
            raise BadRequest(f"The body is not chunked as its headers say: {error}") from error
        target[: len(piece)] = piece
        return len(piece)
