"""The context of a request: its caller with the request ids for logs, and the meaning of its path's prefix.

This module does not import the libraries for requests to the Identity service. Only
:mod:`placement.api.identity` imports them. The modules for errors, logs and authentication need the prefixes,
and the blueprints of ``/ext/v1`` import these modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from oslo_context import context as oslo_context

_KEY: Final = "placement.context"
VERSION: Final = "placement.version"
"""The key of the WSGI environment for the microversion of the request, if the service supports it."""
TRACE_ID: Final = "placement.trace_id"
"""The key of the WSGI environment for the id of a request's trace (hexadecimal), if the trace is recorded."""


class RequestContext(oslo_context.RequestContext):
    """The caller of a request.

    oslo.log adds values of this object to the log records of the thread that has created it.
    """

    def to_policy_values(self) -> dict[str, Any]:
        """Return the attributes of the caller that policy rules can check."""
        return {
            "user_id": self.user_id,
            "user_domain_id": self.user_domain_id,
            "system_scope": self.system_scope,
            "domain_id": self.domain_id,
            "project_id": self.project_id,
            "project_domain_id": self.project_domain_id,
            "roles": self.roles,
            "is_admin_project": self.is_admin_project,
            "service_user_id": self.service_user_id,
            "service_user_domain_id": self.service_user_domain_id,
            "service_project_id": self.service_project_id,
            "service_project_domain_id": self.service_project_domain_id,
            "service_roles": self.service_roles,
        }


def note_authenticated(environ: dict[str, Any]) -> RequestContext:
    """Put the caller into the WSGI environment, from headers that a middleware has authenticated."""
    context: RequestContext = RequestContext.from_environ(environ)
    environ[_KEY] = context
    return context


def note_anonymous(environ: dict[str, Any]) -> RequestContext:
    """Put an anonymous caller with request ids into the WSGI environment, and return the caller."""
    context = RequestContext(
        request_id=environ.get("openstack.request_id"),
        global_request_id=environ.get("openstack.global_request_id"),
    )
    environ[_KEY] = context
    return context


def hand_over(environ: dict[str, Any], context: RequestContext) -> None:
    """Put a known caller into the environment of another request, which is sent for this caller."""
    environ[_KEY] = context


def is_known(environ: Mapping[str, Any]) -> bool:
    """Return whether an authentication middleware has admitted a caller with a user id."""
    context: RequestContext | None = environ.get(_KEY)
    return context is not None and bool(context.user_id)


def caller_of(environ: Mapping[str, Any]) -> RequestContext:
    """Return the caller of a request that came through an authentication middleware, or raise KeyError."""
    context: RequestContext = environ[_KEY]
    return context


class CannotAsk(Exception):
    """The Identity service did not answer whether a token is valid."""


class SignInRefused(Exception):
    """The Identity service refused to sign a user in: the credentials are wrong, or the user has no role."""


@dataclass(frozen=True, slots=True)
class TokenAccess:
    """A token, the seconds for which it remains valid, and the names of its user and project."""

    token: str
    seconds: float
    user: str
    project: str


EXT: Final = "/ext/v1"
"""Prefix of the paths of this API. OpenStack Placement answers 404 to requests for such paths."""

SECRETS: Final = "/console/feeds/"
"""Prefix of paths that are secret: a request for such a path needs no token."""


def shown_path(path: str) -> str:
    """Return a path for logs and traces, without the secret that it has after :data:`SECRETS`."""
    before, found, _ = path.partition(SECRETS)
    return f"{before}{found}***" if found else path


def is_ours(path: str) -> bool:
    """Return whether a path has the prefix ``/ext/v1``."""
    return path == EXT or path.startswith(EXT + "/")
