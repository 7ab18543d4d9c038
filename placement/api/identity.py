"""The middleware ``auth_token`` of keystonemiddleware, with limits.

The middleware asks the Identity service about tokens that are not in its cache. keystonemiddleware itself
waits without a limit for a service that hangs, in each request. Here each query has a time limit, and during
an outage one request at a time tries again.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1.identity import v3
from keystonemiddleware import auth_token
from oslo_config import cfg

from placement import outage
from placement.exceptions import Unavailable
from placement.optional_packages import missing_package

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = logging.getLogger(__name__)

GROUP: Final = "keystone_authtoken"

# a question to the service may take several requests
_TIMEOUT: Final = 10
"""Seconds for each request to the Identity service."""
_RETRIES: Final = 1
"""Number of times that a failed connection is repeated."""


def set_defaults() -> None:
    """Set limits for a service of few threads (``oslo.config.opts.defaults``): the library has none."""
    for _, options in auth_token.AUTH_TOKEN_OPTS:
        cfg.set_defaults(options, http_connect_timeout=_TIMEOUT, http_request_max_retries=_RETRIES)


class CannotAsk(Exception):
    """The Identity service did not tell whether a token is valid, so the caller is unknown."""


class SignInRefused(Exception):
    """The Identity service has no user with this name and secret, or the user has no role in the project."""


@dataclass(frozen=True, slots=True)
class TokenAccess:
    """A token, the seconds that it stays valid, and its user and project."""

    token: str
    seconds: float
    user: str
    project: str


class AuthToken(auth_token.AuthProtocol):  # type: ignore[misc]  # the library has no types
    """The middleware in front of ``app``, with the options of ``[keystone_authtoken]``.

    A call raises :class:`CannotAsk` for a token that is not cached, if the Identity service cannot be asked.

    :raises ValueError: the options cannot be used; no connection was made.
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
        """Ask the Identity service about a token that does not exist.

        :raises CannotAsk: there was no answer; the message has the reason.
        """
        # the expected answer: this token does not exist, and Keystone has told this service so
        with suppress(auth_token.InvalidToken):
            self._identity_server.verify_token("none")

    @cached_property
    def own_secret(self) -> bytes:
        """Bytes derived from this service's own credentials, for keys that are not in the database.

        These bytes are the same in all workers with the same options. A plugin that cannot identify its
        credentials leaves each worker with random bytes of its own.
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
        # auth_url may be with or without the version
        url = self._auth.auth_url.rstrip("/").removesuffix("/v3") + "/v3"
        how: dict[str, Any] = dict(credentials)  # the plugins check the names
        is_application = "application_credential_id" in how
        plugin = v3.ApplicationCredential(url, **how) if is_application else v3.Password(url, **how)
        access = self._identity_server.request_access(plugin, self._session)
        # seconds instead of a time, because sessions are timed by the clock of the database
        left = (access.expires - datetime.now(UTC)).total_seconds()
        return TokenAccess(access.auth_token, left, access.username or "", access.project_name or "")

    def _create_identity_server(self) -> "_IdentityServer":
        """Return the server with limits; the library calls this, its only seam below the cache of tokens."""
        return _IdentityServer(super()._create_identity_server())


class _IdentityOutage(outage.PeerOutage):
    """An outage of the Identity service: it refuses connections, or does not answer in time."""

    refusal = "The Identity service does not answer."

    def is_unanswered(self, error: Exception) -> bool:
        """Return whether there was no answer; an error that the Identity service sends is an answer."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ks_exceptions.ConnectionError):
                return True
            # libraries wrap the error of a connection in errors of their own
            cause = cause.__cause__ or cause.__context__
        return False

    def log_begin(self, error: Exception) -> None:
        """Log the begin of the outage."""
        LOG.error(
            "The Identity service does not answer. Until it does, one request at a time asks it, and others"
            " without a cached token are answered 503; see [keystone_authtoken] auth_url: %s",
            error,
        )

    def log_end(self, seconds: float) -> None:
        """Log the end of the outage."""
        LOG.warning("The Identity service answers again, after %.0f seconds", seconds)


class _SignInOutage(_IdentityOutage):
    """An outage of signing in, apart from that of tokens: clients without a token choose these questions.

    The hanging user directory of a single domain can delay an answer.
    """

    def log_begin(self, error: Exception) -> None:
        """Log the begin of the outage."""
        LOG.error(
            "The Identity service does not answer when users sign in to the console. Until it does, one "
            "request at a time asks it, and others are refused for a while; see [keystone_authtoken] "
            "auth_url, and the directories of the domains of users: %s",
            error,
        )

    def log_end(self, seconds: float) -> None:
        """Log the end of the outage."""
        LOG.warning("The Identity service answers sign-ins again, after %.0f seconds", seconds)


class _IdentityServer:
    """The library's client of the Identity service, with time limits."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._outage = _IdentityOutage()
        self._sign_in_outage = _SignInOutage()

    @property
    def www_authenticate_uri(self) -> Any:
        """The address where clients get tokens, from the catalog of services."""
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
        """Return the access of the plugin's credentials.

        :raises SignInRefused: the credentials are wrong.
        :raises CannotAsk: the Identity service did not answer.
        """
        try:
            with self._sign_in_outage.attempt_request():
                return plugin.get_access(session)
        # one answer for a wrong name, secret or project, so that a stranger does not learn which one is wrong
        except (ks_exceptions.Unauthorized, ks_exceptions.BadRequest, ks_exceptions.Forbidden):
            raise SignInRefused from None
        except ks_exceptions.MissingAuthMethods:
            # the user needs more than a password, and another answer would show strangers that they guessed
            # it
            raise SignInRefused from None
        except Unavailable as error:
            raise CannotAsk(error.detail) from None
        except Exception as error:
            if isinstance(error, ks_exceptions.NotFound) and _is_of_identity(error):
                raise SignInRefused from None  # there is no such application credential
            if not self._outage.is_unanswered(error):
                LOG.exception("The Identity service could not be asked to sign a user in")
            raise CannotAsk(str(error)) from error

    def invalidate(self) -> None:
        """Make this service sign in again before the next query."""
        # without a login of its own, the service has no token to forget
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
            if not self._outage.is_unanswered(error):
                # not after a missing answer, because signing in again would slow down a slow service even
                # more
                self.invalidate()
                LOG.exception("The Identity service could not be asked to validate a token")
            raise CannotAsk(str(error)) from error


def _is_about_token(cause: BaseException | None) -> bool:
    """Return whether an answer 404 is about a token, in the form of the Identity API."""
    if not isinstance(cause, ks_exceptions.NotFound) or cause.response is None:
        return True
    return cause.method != "POST" and _is_of_identity(cause)


def _is_of_identity(error: ks_exceptions.NotFound) -> bool:
    """Return whether an answer 404 has the form of the Identity API."""
    try:
        body = None if error.response is None else error.response.json()
    except ValueError:
        # something other than Keystone answered, such as a proxy
        return False
    return isinstance(body, dict) and isinstance(body.get("error"), dict)


def _has_login(conf: cfg.ConfigOpts) -> bool:
    return bool(conf[GROUP].auth_type or conf[GROUP].auth_section)


def keystone_obstacle(conf: cfg.ConfigOpts) -> str | None:
    """Return why no token could be validated now by ``[keystone_authtoken]``; None if it could."""
    # without its log messages, because the returned text says the same
    logging.disable()
    try:
        middleware = AuthToken(lambda environ, start_response: [], conf)
        if not _has_login(conf):
            return f"[{GROUP}] auth_type is not set"
        middleware.check_service()
    except ValueError as error:
        return str(error)
    except CannotAsk as error:
        return f"[{GROUP}]: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def _check_cache(conf: cfg.ConfigOpts) -> None:
    """Check that the packages for caching tokens are installed, because requests would fail without them.

    :raises ValueError: a package is missing; the message names it.
    """
    options = conf[GROUP]
    if not options.memcached_servers:
        return
    # the library imports these packages only with the first request that has a token
    needed = {"memcache": "python-memcached"}
    if options.memcache_security_strategy.upper() == "ENCRYPT":
        needed["cryptography"] = "cryptography"
    absent = [package for module, package in needed.items() if find_spec(module) is None]
    if absent:
        raise missing_package(f"[{GROUP}] memcached_servers", " and ".join(absent), "memcached")
