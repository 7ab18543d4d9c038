"""Admits visitors of the console by their sessions.

The console checks the token of a session in the same way as the REST API checks the token of a request. So
the revocation of a token or of a role takes effect in the console and in REST at the same moment.
"""

import base64
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import orjson
from cryptography.fernet import Fernet, InvalidToken

from placement.api import context
from placement.api.context import SECRETS, TokenAccess
from placement.api.service import PlacementService
from placement.exceptions import ServiceError, Unavailable
from placement_extras.console import page_request, sessions
from placement_extras.console.page_request import REFUSAL, SESSION, VisitorSession

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

SIGN_IN: Final = "/console/sign-in"

WINDOW: Final = 300.0
"""Seconds for which an attempt to sign in counts towards the limits of attempts."""

# expired sessions and attempts have no effect; their rows are removed only to keep the tables small
_TIDY_SECONDS: Final = 600.0
"""Seconds after which a worker searches again for expired sessions and attempts to sign in."""
_PUBLIC: Final = (SIGN_IN, "/console/sign-out", "/console/static/", SECRETS)
"""Paths that need no session begin with one of these texts."""
ADMITTED: Final = "placement_extras.console.admitted"
"""The key of the WSGI environment that marks a request as admitted after it has passed the authentication."""
_UNAVAILABLE: Final = 503
_CANNOT_ASK: Final = "The Identity service is temporarily unavailable, so your session cannot be checked."


def begin_session(service: PlacementService, access: TokenAccess) -> VisitorSession:
    """Start the session of a visitor that has just signed in."""
    session = VisitorSession(sessions.new_secret(), access.token, access.user, access.project)
    content = orjson.dumps({"token": session.token, "user": session.user, "project": session.project})
    # the key of the encryption is derived from the cookie alone, so that a copy of the database contains no
    # usable token
    kept, key = _session_cipher(session.secret).encrypt(content).decode(), sessions.key(session.secret)
    # a session that is longer than its token would be useless, because each request checks the token
    seconds = min(access.seconds, service.conf.console.session_lifetime)
    service.database.write(lambda tx: sessions.insert_session(tx, key, kept, seconds))
    return session


def end_session(service: PlacementService, secret: str) -> None:
    """End a session, so that its cookie is worthless."""
    key = sessions.key(secret)
    service.database.write(lambda tx: sessions.delete_session(tx, key))


def _session_cipher(secret: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(sessions.cipher_key(secret)))


class SessionAdmission:
    """Admits visitors with a session to the pages, and redirects other visitors to the page to sign in.

    :param authenticated: the same pages behind the authentication of the REST API, which checks the token.
    """

    def __init__(
        self, service: PlacementService, pages: "WSGIApplication", authenticated: "WSGIApplication"
    ) -> None:
        self._service = service
        self._pages = pages
        self._authenticated = authenticated
        self._tidy_due = 0.0

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer with the page, or redirect a visitor without a valid session to the page to sign in."""
        # the log needs request ids even before the visitor is known
        context.note_anonymous(environ)
        if environ.get("PATH_INFO", "").startswith(_PUBLIC):
            return self._pages(environ, start_response)
        try:
            session = self._find_session(environ)
        except ServiceError as error:
            return self._show_refusal(environ, start_response, error)
        if session is None:
            return _to_sign_in(environ, start_response)
        environ[SESSION] = session
        # the header is the same as over REST, so that the token is checked in the same way
        environ["HTTP_X_AUTH_TOKEN"] = session.token
        # a header of the browser must not add the rights of a service
        environ.pop("HTTP_X_SERVICE_TOKEN", None)
        answer = _PageAnswer(environ, start_response)
        body = self._authenticated(environ, answer.start)
        if answer.refused is None:
            return body
        if answer.refused == _UNAVAILABLE:
            return self._show_refusal(environ, start_response, Unavailable(_CANNOT_ASK))
        return _to_sign_in(environ, start_response)

    def _find_session(self, environ: "WSGIEnvironment") -> VisitorSession | None:
        """Return the session of a request, or None."""
        secret = page_request.secret_of(environ, page_request.COOKIE)
        if secret is None:
            return None
        self._service.prepare_database()
        with self._service.database.read() as conn:
            kept = sessions.find_session(conn, sessions.key(secret))
        self._remove_expired()
        if kept is None:
            return None
        try:
            return VisitorSession(secret, **orjson.loads(_session_cipher(secret).decrypt(kept)))
        except InvalidToken:
            return None  # the console did not write this row, or the secret belongs to another session

    def _remove_expired(self) -> None:
        """Remove expired sessions and attempts, at most once in ten minutes for each worker."""
        now = time.monotonic()
        if now < self._tidy_due:
            return
        # requests of signed-in visitors remove expired rows, so that these rows disappear even if no visitor
        # signs in
        self._tidy_due = now + _TIDY_SECONDS
        database = self._service.database
        try:
            with database.read() as conn:
                if not sessions.has_expired(conn, WINDOW):
                    return
            database.write(lambda tx: sessions.remove_expired(tx, WINDOW))
        except Unavailable as error:
            LOG.warning(
                "Expired sessions of the console could not be removed from the database yet: %s", error.detail
            )

    def _show_refusal(
        self, environ: "WSGIEnvironment", start_response: "StartResponse", error: ServiceError
    ) -> Iterable[bytes]:
        environ[REFUSAL] = error
        return self._pages(environ, start_response)


class _PageAnswer:
    """Sends the answer of a page to the browser; if the authentication refuses, records only the status."""

    def __init__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> None:
        self._environ = environ
        self._start_response = start_response
        #: the status of the refusal; None if the answer was sent
        self.refused: int | None = None

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        if self._environ.get(ADMITTED):
            return self._start_response(status, headers, exc_info)
        self.refused = int(status.split()[0])
        return lambda _: None


def _to_sign_in(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """Redirect to the page to sign in; after signing in, the visitor returns to the page of a GET request."""
    address = environ.get("SCRIPT_NAME", "") + SIGN_IN
    if environ["REQUEST_METHOD"] == "GET":
        wanted = environ["PATH_INFO"]
        if query := environ.get("QUERY_STRING"):
            wanted += "?" + query
        # the parameter "next" is left out for the first page, to which visitors return by default
        if wanted not in ("/console", "/console/"):
            address += "?" + urlencode({"next": wanted}, encoding="latin-1")
    headers = [("Content-Length", "0"), ("Cache-Control", "no-store")]
    if "HTTP_HX_REQUEST" in environ:  # htmx would follow a 303 and insert the form into the current page
        start_response("401 Unauthorized", [*headers, ("HX-Redirect", address)])
    else:
        # with status 303, the browser fetches the page to sign in with GET
        start_response("303 See Other", [*headers, ("Location", address)])
    return []
