"""Authentication of requests to the API. Only requests for version documents need no token.

The two authentication strategies (``noauth2`` and ``keystone``) are WSGI middlewares. A strategy puts the
caller into the WSGI environment (:mod:`placement.api.context`), or answers with an error of the API.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson
from oslo_config import cfg

from placement.api import context
from placement.api.context import EXT, CannotAsk, TokenAccess
from placement.exceptions import RETRY_AFTER

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    from placement.api.identity import AuthToken

LOG = logging.getLogger(__name__)

_DETAILS: Final = {
    HTTPStatus.UNAUTHORIZED: "The request you have made requires authentication.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The Identity service is temporarily unavailable.",
}
_ADMIN: Final = "admin"
# with Keystone, the role admin implies member and reader. The role service is needed, too, because the policy
# of the reshaper requires it.
_ADMIN_ROLES: Final = "admin,member,reader,service"


def add_authentication(app: "WSGIApplication", conf: cfg.ConfigOpts) -> "WSGIApplication":
    """Return ``app`` behind the authentication that ``[api] auth_strategy`` selects.

    :raises ValueError: the options of this authentication cannot be used.
    """
    if conf.api.auth_strategy == "noauth2":
        LOG.warning(
            "The service checks no tokens, because [api] auth_strategy is noauth2. Each program that can"
            " connect to the service is an administrator, so the service must listen on loopback only"
        )
        return NoAuth(app)
    return KeystoneAuth(app, conf)


def check_options(conf: cfg.ConfigOpts) -> None:
    """Raise ValueError if the options of the authentication cannot be used."""
    if conf.api.auth_strategy == "keystone":
        # the object is made and dropped, because its constructor checks the options
        _make_auth_token(conf)


class NoAuth:
    """Accepts every token: for tests, and for one machine where the service listens on loopback only.

    A token has the form ``user:project``, or ``user`` if the project has the user's name. The user ``admin``
    has all roles, and any other user has no roles. The header ``X-Roles`` sets other roles, and
    ``X-Project-Id`` sets another project. If the header ``OpenStack-System-Scope`` is sent without
    ``X-Project-Id``, the caller has no project.
    """

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Put the caller that the token names into the environment, and call the application."""
        token = environ.get("HTTP_X_AUTH_TOKEN")
        if not token:
            # a request for a version document needs no caller, but the log needs its request ids
            context.note_anonymous(environ)
            if not _is_public(environ):
                return _send_refusal(
                    environ, start_response, HTTPStatus.UNAUTHORIZED, 'Noauth2 realm="placement"'
                )
        else:
            user, _, project = token.partition(":")
            environ["HTTP_X_USER_ID"] = user
            if "HTTP_X_ROLES" not in environ:
                environ["HTTP_X_ROLES"] = _ADMIN_ROLES if user == _ADMIN else ""
            if "HTTP_OPENSTACK_SYSTEM_SCOPE" not in environ:
                environ.setdefault("HTTP_X_PROJECT_ID", project or user)
            context.note_authenticated(environ)
        return self._app(environ, start_response)


class KeystoneAuth:
    """Admits requests with a token that keystonemiddleware's ``auth_token`` confirms.

    All other requests get an error in the format of this API. If a token is invalid or missing, the status is
    401, even if ``[keystone_authtoken] delay_auth_decision`` is set. If the Identity service does not answer,
    the status is 503.
    """

    def __init__(self, app: "WSGIApplication", conf: cfg.ConfigOpts) -> None:
        self._app = app
        self._auth_token = _make_auth_token(conf)

    @property
    def own_secret(self) -> bytes:
        """Bytes derived from this service's credentials (:class:`~placement.api.identity.AuthToken`)."""
        return self._auth_token.own_secret

    def sign_in(self, credentials: Mapping[str, str]) -> TokenAccess:
        """Sign a user in with :meth:`~placement.api.identity.AuthToken.sign_in`."""
        return self._auth_token.sign_in(credentials)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Put the caller that Keystone has confirmed into the environment, and call the application."""
        # until the token is confirmed, the context for the log has only the request ids
        context.note_anonymous(environ)
        if _is_public(environ):
            return self._app(environ, start_response)
        answer = _AuthAnswer()
        try:
            self._auth_token(environ, answer.start)
        # the status is not 401, because the token is perhaps valid, and a client discards its token after a
        # 401
        except CannotAsk:
            answer.status = HTTPStatus.SERVICE_UNAVAILABLE
        if environ.pop(_ADMITTED, False):
            context.note_authenticated(environ)
            return self._app(environ, start_response)
        return _send_refusal(environ, start_response, answer.status, answer.challenge)


def _make_auth_token(conf: cfg.ConfigOpts) -> "AuthToken":
    # the libraries for Keystone are imported only here, because without Keystone this import would take a
    # fifth of the time that the service needs to start
    from placement.api.identity import AuthToken

    return AuthToken(_note_admission, conf)


_ADMITTED: Final = "placement.auth_token.admitted"


def _note_admission(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """Store whether ``auth_token`` admits the request. This is the WSGI application behind ``auth_token``."""
    # a service token is optional; if the client sends a service token, it has to be valid
    environ[_ADMITTED] = (
        environ.get("HTTP_X_IDENTITY_STATUS") == "Confirmed"
        and environ.get("HTTP_X_SERVICE_IDENTITY_STATUS", "Confirmed") == "Confirmed"
    )
    # the status of a refusal is 401, because auth_token adds its challenge only to such an answer
    start_response("204 No Content" if environ[_ADMITTED] else "401 Unauthorized", [])
    return []


class _AuthAnswer:
    """Records the status of an answer, and its header with the authentication challenge."""

    status = HTTPStatus.UNAUTHORIZED
    challenge: str | None = None

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        self.status = HTTPStatus(int(status.split()[0]))
        self.challenge = next((value for name, value in headers if name.lower() == "www-authenticate"), None)
        return lambda _: None


def _is_public(environ: "WSGIEnvironment") -> bool:
    """Return whether the request is for a version document."""
    # these paths are public, so that clients can read the versions before they have a token
    return environ.get("PATH_INFO", "") in ("", "/", EXT)


def _send_refusal(
    environ: "WSGIEnvironment",
    start_response: "StartResponse",
    status: HTTPStatus,
    challenge: str | None,
) -> Iterable[bytes]:
    error = {
        "status": status.value,
        "title": status.phrase,
        "detail": _DETAILS.get(status, status.description),
        "request_id": environ.get("openstack.request_id"),
    }
    body = orjson.dumps({"errors": [error]})
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", RETRY_AFTER))
    if challenge:
        headers.append(("WWW-Authenticate", challenge))
    start_response(f"{status.value} {status.phrase}", headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
