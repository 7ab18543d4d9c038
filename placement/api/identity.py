"""The middleware ``auth_token`` of keystonemiddleware, with time limits for its queries.

The middleware asks the Identity service about tokens that are not in its cache. If the Identity service
hangs, each request would wait in keystonemiddleware without a limit. This module gives each query a time
limit. During an outage, only one request at a time tries the Identity service.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.identity import v3
from keystonemiddleware import auth_token
from oslo_config import cfg

from placement.api.context import CannotAsk, SignInRefused, TokenAccess
from placement.exceptions import Unavailable
from placement.optional_packages import missing_package
from placement.outage import PeerOutage

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = logging.getLogger(__name__)

GROUP: Final = "keystone_authtoken"
_REFUSAL: Final = "The Identity service does not answer."

# a query of the middleware can need several requests to the Identity service
_TIMEOUT: Final = 10
"""Maximum seconds for each request to the Identity service."""
_RETRIES: Final = 1
"""Number of further attempts after a failed connection."""


def set_defaults() -> None:
    """Give options of keystonemiddleware our time limits as defaults.

    This function is an entry point in the group ``oslo.config.opts.defaults``.
    """
    for _, options in auth_token.AUTH_TOKEN_OPTS:
        cfg.set_defaults(options, http_connect_timeout=_TIMEOUT, http_request_max_retries=_RETRIES)


class AuthToken(auth_token.AuthProtocol):  # type: ignore[misc]  # the library has no types
    """The middleware in front of ``app``, with the options of ``[keystone_authtoken]``.

    A call raises :class:`CannotAsk` if the token is not cached and the Identity service does not answer.

    :raises ValueError: the options cannot be used. The constructor does not connect to the Identity service.
    """

    def __init__(self, app: "WSGIApplication", conf: cfg.ConfigOpts) -> None:
        set_defaults()
        try:
            super().__init__(app, {"oslo_config_config": conf})
        except (ks_exceptions.ClientException, auth_token.ConfigurationError, OSError) as error:
            raise ValueError(f"[{GROUP}] cannot be used: {error}") from error
        _check_cache(conf)
        if not _has_login(conf):
            LOG.error("[keystone_authtoken] auth_type is not set, so no token can be validated")

    def check_service(self) -> None:
        """Test the Identity service with a token that does not exist.

        :raises CannotAsk: the Identity service did not answer. The message has the reason.
        """
        # InvalidToken is the expected result: it means that Keystone has answered
        with suppress(auth_token.InvalidToken):
            self._identity_server.verify_token("none")

    @cached_property
    def own_secret(self) -> bytes:
        """Secret bytes that are derived from this service's credentials, and that are not in the database.

        All workers with the same options compute the same bytes. If the authentication plugin cannot identify
        its credentials, each worker has its own random bytes.
        """
        known: str | None = None if self._auth is None else self._auth.get_cache_id()
        return secrets.token_bytes() if known is None else known.encode()

    def sign_in(self, credentials: Mapping[str, str]) -> TokenAccess:
        """Return a token for a user name and password, or for an application credential.

        :param credentials: the arguments of keystoneauth's ``Password`` or ``ApplicationCredential``.
        :raises SignInRefused: the credentials are wrong.
        :raises CannotAsk: the Identity service did not answer.
        """
        if self._auth is None or getattr(self._auth, "auth_url", None) is None:
            raise CannotAsk(f"[{GROUP}] does not say where the Identity service is")
        # some operators write auth_url with the version at its end, and others without it
        url = self._auth.auth_url.rstrip("/").removesuffix("/v3") + "/v3"
        how: dict[str, Any] = dict(credentials)  # the plugin checks the names of its arguments
        is_application = "application_credential_id" in how
        plugin = v3.ApplicationCredential(url, **how) if is_application else v3.Password(url, **how)
        access = self._identity_server.request_access(plugin, self._session)
        # the result has seconds instead of a time, because sessions expire by the clock of the database
        left = (access.expires - datetime.now(UTC)).total_seconds()
        return TokenAccess(access.auth_token, left, access.username or "", access.project_name or "")

    def _create_identity_server(self) -> "IdentityServer":
        """Return the library's client for tokens that are not in the cache, with time limits."""
        return IdentityServer(super()._create_identity_server())


def _is_unanswered(error: Exception) -> bool:
    """Return whether the service refused the connection or did not answer; an error status is an answer."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ks_exceptions.ConnectionError):
            return True
        # libraries wrap the error of a connection in their own exceptions
        cause = cause.__cause__ or cause.__context__
    return False


class IdentityServer:
    """The library's client of the Identity service, with time limits."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._outage = PeerOutage(
            _is_unanswered,
            _REFUSAL,
            lambda error: LOG.error(
                "The Identity service does not answer. Until it answers, one request at a time waits for it,"
                " and other requests without a cached token get the answer 503. Check [keystone_authtoken]"
                " auth_url: %s",
                error,
            ),
            lambda seconds: LOG.warning("The Identity service answers again, after %.0f seconds", seconds),
        )
        # strangers can cause an outage of signing in, so it has no effect on requests with tokens
        self._sign_in_outage = PeerOutage(
            _is_unanswered,
            _REFUSAL,
            lambda error: LOG.error(
                "The Identity service does not answer when users sign in to the console. Until it answers,"
                " one user at a time can try, and other users have to wait. Check [keystone_authtoken]"
                " auth_url, and the directories of the domains of users: %s",
                error,
            ),
            lambda seconds: LOG.warning(
                "The Identity service answers sign-ins again, after %.0f seconds", seconds
            ),
        )

    @property
    def www_authenticate_uri(self) -> Any:
        """The address where clients get tokens, taken from the service catalog."""
        with self._bounded_request():
            return self._server.www_authenticate_uri

    def verify_token(self, *args: Any, **kwargs: Any) -> Any:
        """Return the data of a token.

        :raises auth_token.InvalidToken: the token is not valid.
        :raises CannotAsk: the Identity service did not answer.
        """
        with self._bounded_request():
            return self._server.verify_token(*args, **kwargs)

    def request_access(self, plugin: Any, session: Any) -> Any:
        """Return a token, with its user and project, for the plugin's credentials.

        :raises SignInRefused: the credentials are wrong.
        :raises CannotAsk: the Identity service did not answer.
        """
        try:
            with self._sign_in_outage.attempt_request():
                return plugin.get_access(session)
        # a wrong name, a wrong secret and a wrong project lead to the same error, so that a stranger does not
        # learn which of them is wrong
        except (ks_exceptions.Unauthorized, ks_exceptions.BadRequest, ks_exceptions.Forbidden):
            raise SignInRefused from None
        except ks_exceptions.MissingAuthMethods:
            # the user needs more than a password to sign in. Another error would show a stranger that a
            # guessed password is right.
            raise SignInRefused from None
        except Unavailable as error:
            raise CannotAsk(error.detail) from None
        except Exception as error:
            if isinstance(error, ks_exceptions.NotFound) and _is_of_identity(error):
                raise SignInRefused from None  # there is no such application credential
            if not _is_unanswered(error):
                LOG.exception("A user could not sign in, because the request to the Identity service failed")
            raise CannotAsk(str(error)) from error

    def invalidate(self) -> None:
        """Drop this service's own token, so that the service signs in again before the next query."""
        # without an authentication plugin, the service has no token to drop
        with suppress(ks_exceptions.MissingAuthPlugin):
            self._server.invalidate()

    @contextmanager
    def _bounded_request(self) -> Iterator[None]:
        try:
            with self._outage.attempt_request():
                yield
        except auth_token.InvalidToken as error:
            if not _is_about_token(error.__context__):
                self.invalidate()
                LOG.error(
                    "There is no Identity service at [keystone_authtoken] auth_url, so no token can be "
                    "validated: %s",
                    error.__context__,
                )
                raise CannotAsk(f"auth_url leads to no Identity service: {error.__context__}") from error
            raise
        except Unavailable as error:
            raise CannotAsk(error.detail) from None
        except Exception as error:
            if not _is_unanswered(error):
                # if the Identity service did not answer, this service keeps its own token, because signing in
                # again would slow down a slow Identity service even more
                self.invalidate()
                LOG.exception(
                    "A token could not be validated, because the request to the Identity service failed"
                )
            raise CannotAsk(str(error)) from error


def _is_about_token(cause: BaseException | None) -> bool:
    """Return whether the cause of an InvalidToken is about the token, and not about a wrong address."""
    if not isinstance(cause, ks_exceptions.NotFound) or cause.response is None:
        return True
    return cause.method != "POST" and _is_of_identity(cause)


def _is_of_identity(error: ks_exceptions.NotFound) -> bool:
    """Return whether an answer 404 has the form of the Identity API's errors."""
    try:
        body = None if error.response is None else error.response.json()
    except ValueError:
        # another server, such as a proxy, has answered instead of Keystone
        return False
    return isinstance(body, dict) and isinstance(body.get("error"), dict)


def _has_login(conf: cfg.ConfigOpts) -> bool:
    return bool(conf[GROUP].auth_type or conf[GROUP].auth_section)


def keystone_obstacle(conf: cfg.ConfigOpts) -> str | None:
    """Return why tokens cannot be validated with ``[keystone_authtoken]`` at present; None if they can."""
    try:
        middleware = AuthToken(lambda environ, start_response: [], conf)
        if not _has_login(conf):
            return f"[{GROUP}] auth_type is not set"
        middleware.check_service()
    except ValueError as error:
        return str(error)
    except CannotAsk as error:
        return f"[{GROUP}]: {error}"
    return None


def _check_cache(conf: cfg.ConfigOpts) -> None:
    """Raise ValueError if a package for the cache of tokens is missing; each request would then fail."""
    options = conf[GROUP]
    if not options.memcached_servers:
        return
    # the library imports these packages only at the first request with a token
    needed = {"memcache": "python-memcached"}
    if options.memcache_security_strategy.upper() == "ENCRYPT":
        needed["cryptography"] = "cryptography"
    absent = [package for module, package in needed.items() if find_spec(module) is None]
    if absent:
        raise missing_package(f"[{GROUP}] memcached_servers", " and ".join(absent), "memcached")
