"""Errors and answers of the Identity service, without the libraries that send requests to it.

Only a service with ``[api] auth_strategy = keystone`` imports these libraries
(:mod:`placement.api.identity`).
"""

from dataclasses import dataclass


class CannotAsk(Exception):
    """The Identity service did not answer whether a token is valid."""


class SignInRefused(Exception):
    """The Identity service has no user with this name and secret, or the user has no role in the project."""


@dataclass(frozen=True, slots=True)
class TokenAccess:
    """A token with its remaining seconds of validity, its user and its project."""

    token: str
    seconds: float
    user: str
    project: str
