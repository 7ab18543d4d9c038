"""Sends requests to Placement through a keystoneauth1 adapter, and checks the answers.

The transport negotiates the microversion, and reads the version of the API below ``/ext/v1``. Each failure
becomes a :class:`~compute_agent.report.answers.PlacementError`. Each request has an id, which Placement also
logs.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final, Self

from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from compute_agent.conf.placement import plugin_names
from compute_agent.model.messages import missing_package
from compute_agent.report.answers import (
    REQUEST_ID,
    BadAnswerError,
    ConcurrentUpdateError,
    ConflictError,
    CredentialsError,
    NoSpans,
    NotFoundError,
    OptionsError,
    PlacementError,
    RequestSpans,
    UnavailableError,
    check_shape,
)
from compute_agent.report.bounded_session import AnswerTooLargeError, AnswerTooSlowError, bounded_session

LOG = logging.getLogger(__name__)

PREFERRED_MICROVERSION: Final = (1, 39)
# Older microversions lack nested providers (1.14), error codes (1.23) or consumer generations (1.28).
MINIMUM_MICROVERSION: Final = (1, 28)

_NO_EXTENSIONS: Final = (0, 0)
# The last microversion before consumer types (1.38).
UNTYPED_MICROVERSION: Final = "1.37"

_MAX_DETAIL: Final = 10_000
"""Maximum number of characters in the text of an error. The text about a refused tree can name many
providers.
"""

_ERRORS: Final[Mapping[int, type[PlacementError]]] = {
    401: CredentialsError,
    403: CredentialsError,
    404: NotFoundError,
    409: ConflictError,
    **dict.fromkeys((502, 503, 504), UnavailableError),
}
_CONCURRENT_UPDATE: Final = "placement.concurrent_update"

_WHERE: Final = (
    "does it run at the address in [placement] (endpoint_override, or endpoint or auth_url of auth_type)?"
)
_WHICH: Final = (
    "[placement] region_name and valid_interfaces choose it from the catalog, endpoint_override names it"
)


class PlacementTransport:
    """Sends requests to one Placement endpoint. Several threads may use it at once."""

    def __init__(self, adapter: ks_adapter.Adapter, spans: RequestSpans | None = None) -> None:
        self.spans = spans or NoSpans()
        self.adapter = adapter
        self._microversion: str | None = None
        self._extensions: tuple[int, int] | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> Self:
        """A transport with the options of ``[placement]``.

        :raises OptionsError: the authentication options cannot be used.
        :raises ConfigError: ``[tracing]`` needs packages that are not installed.
        """
        wanted, present = conf.placement.auth_type, plugin_names()
        if wanted and wanted not in present and not conf.placement.auth_section:
            names = ", ".join(sorted(present))
            raise OptionsError(f"auth_type = {wanted}: there is no such plugin; there are {names}")
        try:
            auth = loading.load_auth_from_conf_options(conf, "placement")
            session = loading.load_session_from_conf_options(
                conf, "placement", auth=auth, session=bounded_session(conf.placement)
            )
            adapter = loading.load_adapter_from_conf_options(conf, "placement", session=session, auth=auth)
        except ks_exceptions.ClientException as error:
            raise OptionsError(f"cannot be used: {error}") from error
        return cls(adapter, _request_spans(conf) if conf.tracing.enabled else None)

    def forget_extensions(self) -> None:
        """Forget the version of ``/ext/v1``, so that it is read again, perhaps from another server."""
        with self._lock:
            self._extensions = None

    def extension_version(self) -> tuple[int, int]:
        """The version of the API below ``/ext/v1``, read once; (0, 0) if the server has no such API."""
        with self._lock:
            if self._extensions is None:
                self._extensions = self._find_extensions()
            return self._extensions

    def _find_extensions(self) -> tuple[int, int]:
        try:
            # send_request() is not used here: chosen_microversion() would wait for the lock that this thread
            # holds.
            answer = self._send("GET", "/ext/v1", None, {}, {"version": {"max_version": str}})
            return _version("GET", "/ext/v1", answer["version"]["max_version"])
        except (NotFoundError, CredentialsError):  # A proxy can refuse paths that it does not know.
            return _NO_EXTENSIONS

    def chosen_microversion(self) -> str:
        """The microversion in use: 1.39, or the newest one of an older server. It is negotiated only once.

        :raises PlacementError: the request failed, or the server is too old for the agent.
        """
        with self._lock:
            if self._microversion is None:
                self._microversion = self._negotiate_microversion()
            return self._microversion

    def knows_consumer_types(self) -> bool:
        """Whether consumers have types in the microversion in use."""
        return parse_microversion(self.chosen_microversion()) > parse_microversion(UNTYPED_MICROVERSION)

    def _negotiate_microversion(self) -> str:
        # send_request() is not used here, because it needs the result of this function.
        document = self._send("GET", "/", None, {}, {"versions": [{"max_version": str}]})
        offered = (_version("GET", "/", entry["max_version"]) for entry in document["versions"])
        newest = max(offered, default=(0, 0))
        chosen = min(PREFERRED_MICROVERSION, newest)
        if chosen < MINIMUM_MICROVERSION:
            needed = ".".join(map(str, MINIMUM_MICROVERSION))
            detail = (
                f"the server offers microversion {newest[0]}.{newest[1]}, the agent needs {needed} or later"
            )
            raise PlacementError("GET", "/", detail, status=200)
        return f"{chosen[0]}.{chosen[1]}"

    def send_request(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        microversion: str | None = None,
        shape: Any = None,
    ) -> Any:
        """Send a request and return the document of its answer, checked against ``shape``.

        The result is None if ``shape`` is None.

        :param microversion: the microversion of the request; None means the negotiated one.
        :param shape: the required form of the answer (see :mod:`compute_agent.report.answers`).
        :raises PlacementError: the request failed, or the answer has another shape.
        """
        version = microversion or self.chosen_microversion()
        return self._send(method, url, body, {"OpenStack-API-Version": f"placement {version}"}, shape)

    def _send(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        headers: dict[str, str],
        shape: Any,
    ) -> Any:
        response = self._get_response(method, url, body, headers)
        return None if shape is None else as_json(method, url, response, shape)

    def _get_response(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        headers: dict[str, str],
        expected: int = 200,
    ) -> Any:
        """Send a request, and return the response if its status is a success or ``expected``."""
        request_id = f"req-{uuid.uuid4()}"
        headers = {"Accept": "application/json", REQUEST_ID: request_id, **headers}
        # raise_exc=False, because the code below makes errors from statuses, with the text of the answer.
        arguments: dict[str, Any] = {"headers": headers, "raise_exc": False}
        if body is not None:
            arguments["json"] = body
        started = time.monotonic()
        try:
            with self.spans.trace_request(method, url, headers) as note_status:
                response = self.adapter.request(url, method, **arguments)
                note_status(response.status_code)
        # The order matters: exceptions that come first are subclasses of later exceptions.
        except (ks_exceptions.Unauthorized, ks_exceptions.AuthorizationFailure) as error:
            raise CredentialsError(method, url, str(error)) from error
        except ks_exceptions.MissingAuthPlugin as error:
            raise OptionsError(
                "auth_type is not set, so the agent cannot authenticate to Placement"
            ) from error
        except ks_exceptions.ConnectionError as error:
            # Only UnknownConnectionError has an original error.
            original = getattr(error, "original", None)
            if isinstance(original, AnswerTooLargeError | AnswerTooSlowError):
                raise UnavailableError(method, url, str(original)) from error
            raise UnavailableError(method, url, f"no answer: {_short_reason(error)}; {_WHERE}") from error
        except ks_exceptions.EndpointNotFound as error:
            raise UnavailableError(method, url, f"{error}; {_WHICH}") from error
        # All other errors, such as a failed discovery, are perhaps temporary.
        except ks_exceptions.ClientException as error:
            raise UnavailableError(method, url, str(error)) from error
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # The token is dropped, because keystoneauth1 does not check answers and would keep a malformed
            # token.
            self.adapter.invalidate()
            detail = f"an answer of Keystone or Placement is invalid: {type(error).__name__}: {error}"
            raise PlacementError(method, url, detail) from error
        # A 404 is an ordinary answer, for example to the question whether a provider exists.
        LOG.log(
            logging.INFO if response.status_code >= 400 and response.status_code != 404 else logging.DEBUG,
            "%s %s: HTTP %d in %.3f s, %s",
            method,
            url,
            response.status_code,
            time.monotonic() - started,
            request_id,
        )
        if response.status_code >= 300 and response.status_code != expected:
            raise _error_for(method, url, response)
        return response


def _request_spans(conf: cfg.ConfigOpts) -> RequestSpans:
    try:
        from compute_agent.report.tracing import tracing_to  # needs optional packages
    except ImportError as error:
        raise missing_package("[tracing] enabled", str(error.name), "tracing") from error
    return tracing_to(conf.tracing.endpoint, conf.tracing.sample_ratio)


def as_json(method: str, url: str, response: Any, shape: Any) -> Any:
    """The JSON document of a response, checked against a shape of :mod:`compute_agent.report.answers`.

    :raises PlacementError: the response is not JSON, or has another shape.
    """
    try:
        document = response.json()
        check_shape(document, shape)
    except BadAnswerError as error:
        detail = f"the answer is invalid: {error}"
        raise PlacementError(method, url, detail, status=response.status_code) from error
    except (ValueError, RecursionError) as error:
        detail = f"the answer is not JSON: {response.text[:200]!r}"
        raise PlacementError(method, url, detail, status=response.status_code) from error
    return document


def _short_reason(error: BaseException) -> str:
    """The address that does not answer, and the reason that the operating system gives."""
    root: BaseException | None = error
    reason = ""
    while root is not None:
        if isinstance(root, OSError) and root.strerror:
            reason = root.strerror
        # The innermost error has the system's reason; the outer errors wrap it.
        root = root.__cause__ or root.__context__
    return f"{str(error).partition(': ')[0]}: {reason}" if reason else str(error)


def parse_microversion(text: str) -> tuple[int, int]:
    """The two numbers of a version such as ``1.39``.

    :raises ValueError: the text is not a version.
    """
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _version(method: str, url: str, text: str) -> tuple[int, int]:
    try:
        return parse_microversion(text)
    except ValueError as error:
        raise PlacementError(method, url, f"{text[:50]!r} is not a version", status=200) from error


def _error_for(method: str, url: str, response: Any) -> PlacementError:
    """The exception for an unsuccessful response. It has the text of the error document, if there is one."""
    status: int = response.status_code
    code, detail = None, response.text[:500] or response.reason or "no text"
    try:
        first = response.json()["errors"][0]
        code, detail = first.get("code"), str(first.get("detail") or detail)[:_MAX_DETAIL]
        # OpenStack Placement puts a general sentence before the specific sentence.
        detail = detail.strip().rpartition("\n\n")[2]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        pass  # A proxy or an older server answered, so there is only the plain text.
    kind = _ERRORS.get(status, PlacementError)
    if kind is ConflictError and code == _CONCURRENT_UPDATE:
        kind = ConcurrentUpdateError
    return kind(method, url, " ".join(detail.split()), status=status, code=code)
