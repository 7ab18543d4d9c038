"""What can go wrong between the agent and Placement, by what the caller can do about it."""

from __future__ import annotations

from typing import Any, Final

from compute_agent.model.messages import on_one_line


class PlacementError(Exception):
    """A request to Placement failed.

    ``method`` and ``url`` name the request, ``status`` is the HTTP status (``None`` where no answer came),
    ``code`` the error code of the answer (``placement.concurrent_update``, ...) and ``detail`` its text.
    """

    def __init__(
        self, method: str, url: str, detail: str, *, status: int | None = None, code: str | None = None
    ) -> None:
        self.method = method
        self.url = url
        # The peer's text, which goes to logs and terminals.
        self.detail = detail = on_one_line(detail)
        self.status = status
        self.code = code
        answer = "" if status is None else f"HTTP {status}: "
        super().__init__(f"{method} {url}: {answer}{detail}")


class UnavailableError(PlacementError):
    """Nobody answered, or nobody who can serve now: try again later.

    No connection, time-out, 502, 503, 504.
    """


_AS_WHOM: Final = (
    "check as whom the agent asks: in [placement] username and password, or token;"
    " it needs the role service or admin"
)


class CredentialsError(PlacementError):
    """The credentials of ``[placement]`` do not work (401, 403): the operator has to act."""

    def __init__(self, method: str, url: str, detail: str, **answer: Any) -> None:
        super().__init__(method, url, detail, **answer)
        self.args = (f"{self.args[0]}; {_AS_WHOM}",)


class OptionsError(CredentialsError):
    """The options of ``[placement]`` name no way to Placement: the operator has to act."""

    def __init__(self, detail: str) -> None:
        super().__init__("", "", detail)
        self.args = (f"[placement] {detail}",)


class NotFoundError(PlacementError):
    """The provider, class or trait is not there (404)."""


class ConflictError(PlacementError):
    """The state of the server forbids the change (409)."""


class ConcurrentUpdateError(ConflictError):
    """Somebody else changed the provider since it was read (409): read again and try again."""
