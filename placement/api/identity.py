"""keystonemiddleware's ``auth_token``, which asks the Identity service about tokens it does not remember.

It waits for ever for a service that hangs, and each request waits anew; here there is a limit to both.
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

_TIMEOUT: Final = 10  # seconds for each request to the Identity service, of which a question may take several
_RETRIES: Final = 1  # of a connection that cannot be made


def set_defaults() -> None:
    """Limits for a service of few threads (``oslo.config.opts.defaults``): the library waits for ever."""
    for _, options in auth_token.AUTH_TOKEN_OPTS:
        cfg.set_defaults(options, http_connect_timeout=_TIMEOUT, http_request_max_retries=_RETRIES)


class CannotAsk(Exception):
    """The Identity service did not say whether a token is good; nobody knows who asks."""


class SignInRefused(Exception):
    """The Identity service knows nobody by this name with this secret, or he has no role in that project."""


@dataclass(frozen=True, slots=True)
class TokenAccess:
    """A token, for how many seconds it is good, and whose it is."""

    token: str
    seconds: float
    user: str
    project: str


class AuthToken(auth_token.AuthProtocol):  # type: ignore[misc]  # the library has no types
    """The middleware in front of ``app``, as ``[keystone_authtoken]`` describes it.

    :raises ValueError: the section cannot be used (when made); nothing is connected then.
    :raises CannotAsk: called with a token that it does not know and cannot ask about.
    """

    def __init__(self, app: "WSGIApplication", conf: cfg.ConfigOpts) -> None:
        set_defaults()
        try:
            super().__init__(app, {"oslo_config_config": conf})
        except (ks_exceptions.ClientException, auth_token.ConfigurationError, OSError) as error:
            raise ValueError(f"[{GROUP}] cannot be used: {error}") from error
        _check_cache(conf)
        if not _has_login(conf):
            LOG.error("[keystone_authtoken] auth_type is not set: no token can be validated")

    def check(self) -> None:
        """Ask about a token that there is not.

        :raises CannotAsk: nobody could say so; the message says why.
        """
        with suppress(auth_token.InvalidToken):
            self._identity_server.verify_token("none")

    @cached_property
    def own_secret(self) -> bytes:
        """What follows from that with which this service itself signs in, for keys that the database lacks.

        The same in all workers that are configured alike; of a plugin that cannot say, this worker's own.
        """
        known: str | None = None if self._auth is None else self._auth.get_cache_id()
        return secrets.token_bytes() if known is None else known.encode()

    def sign_in(self, credentials: Mapping[str, str]) -> TokenAccess:
        """A token for somebody, by a name and a password, or by an application credential.

        :param credentials: what keystoneauth's ``Password`` or ``ApplicationCredential`` takes.
        :raises SignInRefused: they are not right.
        :raises CannotAsk: nobody could say so.
        """
        if self._auth is None or getattr(self._auth, "auth_url", None) is None:
            raise CannotAsk(f"[{GROUP}] does not say where the Identity service is")
        url = self._auth.auth_url.rstrip("/").removesuffix("/v3") + "/v3"
        how: dict[str, Any] = dict(credentials)  # whose names the plugins know
        is_application = "application_credential_id" in how
        plugin = v3.ApplicationCredential(url, **how) if is_application else v3.Password(url, **how)
        access = self._identity_server.access(plugin, self._session)
        left = (access.expires - datetime.now(UTC)).total_seconds()
        return TokenAccess(access.auth_token, left, access.username or "", access.project_name or "")

    def _create_identity_server(self) -> "_IdentityServer":
        """Called by the library, whose only seam between what it remembers and what it asks for this is."""
        return _IdentityServer(super()._create_identity_server())


class _IdentityOutage(outage.PeerOutage):
    """The Identity service is away: connections are refused, or nothing comes back in time."""

    refusal = "The Identity service does not answer."

    def is_unanswered(self, error: Exception) -> bool:
        """Whether there was no answer; an error of its own is one, which a token may have caused."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ks_exceptions.ConnectionError):
                return True
            cause = cause.__cause__ or cause.__context__
        return False

    def log_begin(self, error: Exception) -> None:
        """What an operator looks at."""
        LOG.error(
            "the Identity service does not answer: until it does, one request at a time asks it, and others "
            "whose token is not remembered are answered 503; see [keystone_authtoken] auth_url: %s",
            error,
        )

    def log_end(self, seconds: float) -> None:
        """When it was over."""
        LOG.warning("the Identity service answers again, after %.0f seconds", seconds)


class _NobodySignsIn(_IdentityOutage):
    """Nobody can sign in, which says nothing of tokens: strangers choose what it takes to answer this.

    One domain whose users are in a directory that hangs is enough to have no answer in time.
    """

    def log_begin(self, error: Exception) -> None:
        """What an operator looks at."""
        LOG.error(
            "the Identity service does not answer who signs in to the console: until it does, one at a time "
            "asks it, and others are told to try later; see [keystone_authtoken] auth_url, and the "
            "directories of the domains of users: %s",
            error,
        )

    def log_end(self, seconds: float) -> None:
        """When it was over."""
        LOG.warning("the Identity service answers who signs in again, after %.0f seconds", seconds)


class _IdentityServer:
    """What the library asks, with an end to it."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._outage = _IdentityOutage()
        self._nobody_signs_in = _NobodySignsIn()

    @property
    def www_authenticate_uri(self) -> Any:
        """Where clients get tokens, as the catalog says."""
        with self._asking():
            return self._server.www_authenticate_uri

    def verify_token(self, *args: Any, **kwargs: Any) -> Any:
        """What a token stands for.

        :raises auth_token.InvalidToken: for nothing.
        :raises CannotAsk: there was no answer to that.
        """
        with self._asking():
            return self._server.verify_token(*args, **kwargs)

    def access(self, plugin: Any, session: Any) -> Any:
        """What somebody gets who signs in as the plugin does.

        :raises SignInRefused: nothing.
        :raises CannotAsk: there was no answer to that.
        """
        try:
            with self._nobody_signs_in.attempt_request():
                return plugin.get_access(session)
        except (ks_exceptions.Unauthorized, ks_exceptions.BadRequest, ks_exceptions.Forbidden):
            raise SignInRefused from None
        except ks_exceptions.MissingAuthMethods:
            # he has to say more than a password; to say so would tell strangers that they guessed it
            raise SignInRefused from None
        except Unavailable as error:
            raise CannotAsk(error.detail) from None
        except Exception as error:
            if isinstance(error, ks_exceptions.NotFound) and _is_of_identity(error):
                raise SignInRefused from None  # there is no such application credential
            if not self._outage.is_unanswered(error):
                LOG.exception("The Identity service could not be asked to sign somebody in.")
            raise CannotAsk(str(error)) from error

    def invalidate(self) -> None:
        """Sign in anew before the next question."""
        with suppress(ks_exceptions.MissingAuthPlugin):
            self._server.invalidate()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            with self._outage.attempt_request():
                yield
        except auth_token.InvalidToken as error:
            if not _is_about_token(error.__context__):
                self.invalidate()
                LOG.error(
                    "no Identity service is where [keystone_authtoken] auth_url says: "
                    "no token can be validated: %s",
                    error.__context__,
                )
                raise CannotAsk(f"at auth_url there is no Identity service: {error.__context__}") from error
            raise
        except Unavailable as error:
            raise CannotAsk(error.detail) from None
        except Exception as error:
            if not self._outage.is_unanswered(error):
                # not so where nothing came back: signing in again and again does not help a slow one
                self.invalidate()
                LOG.exception("The Identity service could not be asked to validate a token.")
            raise CannotAsk(str(error)) from error


def _is_about_token(cause: BaseException | None) -> bool:
    """Whether an answer 404 is one about a token: to a question about one, in the form of this API."""
    if not isinstance(cause, ks_exceptions.NotFound) or cause.response is None:
        return True
    return cause.method != "POST" and _is_of_identity(cause)


def _is_of_identity(error: ks_exceptions.NotFound) -> bool:
    """Whether an answer 404 has the form of this API."""
    try:
        body = None if error.response is None else error.response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and isinstance(body.get("error"), dict)


def _has_login(conf: cfg.ConfigOpts) -> bool:
    return bool(conf[GROUP].auth_type or conf[GROUP].auth_section)


def keystone_obstacle(conf: cfg.ConfigOpts) -> str | None:
    """Why no token could be validated now, as far as ``[keystone_authtoken]`` is to blame; None if it can."""
    logging.disable()  # all that is to be said is in the answer
    try:
        middleware = AuthToken(lambda environ, start_response: [], conf)
        if not _has_login(conf):
            return f"[{GROUP}] auth_type is not set"
        middleware.check()
    except ValueError as error:
        return str(error)
    except CannotAsk as error:
        return f"[{GROUP}]: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def _check_cache(conf: cfg.ConfigOpts) -> None:
    """:raises ValueError: what tokens are to be remembered with is not installed; requests would tell."""
    options = conf[GROUP]
    if not options.memcached_servers:
        return
    needed = {"memcache": "python-memcached"}
    if options.memcache_security_strategy.upper() == "ENCRYPT":
        needed["cryptography"] = "cryptography"
    absent = [package for module, package in needed.items() if find_spec(module) is None]
    if absent:
        raise missing_package(f"[{GROUP}] memcached_servers", " and ".join(absent), "memcached")
