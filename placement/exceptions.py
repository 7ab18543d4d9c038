"""The exceptions that become error answers of the API.

Each class is a kind of error that clients can get. The class of an exception determines the HTTP status of
the answer (:mod:`placement.api.errors` has the table). The attribute ``code`` is the error code, which
answers contain from microversion 1.23 on (API reference, "Error codes").
"""

from collections.abc import Mapping
from typing import Any, Final, Self

UNDEFINED: Final = "placement.undefined_code"
BAD_VALUE: Final = "placement.query.bad_value"
DUPLICATE_KEY: Final = "placement.query.duplicate_key"
MISSING_VALUE: Final = "placement.query.missing_value"
CONCURRENT_UPDATE: Final = "placement.concurrent_update"
DUPLICATE_NAME: Final = "placement.duplicate_name"
INVENTORY_IN_USE: Final = "placement.inventory.inuse"
PROVIDER_IN_USE: Final = "placement.resource_provider.inuse"
PROVIDER_NOT_FOUND: Final = "placement.resource_provider.not_found"
NO_CANDIDATE: Final = "placement.ext.no_candidate"  # not of OpenStack Placement
CURSOR_TOO_OLD: Final = "placement.ext.cursor_too_old"  # not of OpenStack Placement
END_TOO_LATE: Final = "placement.ext.end_too_late"  # not of OpenStack Placement
LIMIT_EXCEEDED: Final = "placement.ext.limit_exceeded"  # not of OpenStack Placement
NO_RESERVATION: Final = "placement.ext.no_reservation"  # not of OpenStack Placement
SEARCH_TOO_LONG: Final = "placement.ext.search_too_long"  # not of OpenStack Placement
CANNOT_DELETE_PARENT: Final = "placement.resource_provider.cannot_delete_parent"


class ServiceError(Exception):
    """Base class of all errors. The attribute ``detail`` becomes the field ``detail`` of the answer."""

    def __init__(self, detail: str, code: str = UNDEFINED) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code


class InvalidRequest(ServiceError):
    """The request is malformed or asks for something impossible: 400.

    :param plain_detail: another text for answers below ``/ext/v1``. It is given if ``detail`` has words of
        OpenStack Placement that are harder to understand.
    """

    def __init__(self, detail: str, code: str = UNDEFINED, plain_detail: str | None = None) -> None:
        super().__init__(detail, code)
        self.plain_detail = detail if plain_detail is None else plain_detail

    @classmethod
    def too_long(cls, failure: str, seconds: float, option: str, advice: str) -> Self:
        """Return the error for a request that takes too long.

        :param failure: the beginning of the message: a main clause about the result that was not reached.
        :param seconds: the limit of CPU time.
        :param option: the option in ``[api]`` that sets the limit.
        :param advice: the end of the message, with its punctuation.
        """
        limit = f"in {seconds:g} seconds of work, which is the limit ([api] {option})"
        return cls(f"{failure} {limit}{advice}", SEARCH_TOO_LONG)


class Forbidden(ServiceError):
    """The policy does not allow the caller this operation: 403."""


class NotFound(ServiceError):
    """Something that the request names does not exist: 404."""


class Conflict(ServiceError):
    """The request contradicts the current state: 409."""

    has_overlaps = False
    """Whether windows, or claims with an end time, are the reason for the conflict."""

    def add_overlaps(self, sentence: str) -> None:
        """Add a sentence about the windows and claims that prevent the write; an empty text means none."""
        self.detail += sentence
        self.has_overlaps = self.has_overlaps or bool(sentence)


class ConcurrentUpdate(Conflict):
    """A generation in the request is not the current generation: 409."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, CONCURRENT_UPDATE)


class ConsumerExists(ConcurrentUpdate):
    """The request creates a consumer that already exists: 409."""


class NoCandidate(Conflict):
    """No candidate satisfies a claim: 409. If an explanation was made, the answer contains it.

    If another time was found at which the claim would fit, the answer contains it. A refused window has an
    earliest start, and a refused claim has a latest end. A claim without an end time can have both times.
    """

    earliest_start: str | None = None
    latest_end: str | None = None

    def __init__(self, detail: str, explanation: Mapping[str, Any] | None) -> None:
        super().__init__(detail, NO_CANDIDATE)
        self.explanation = explanation

    def add_earliest_start(self, start: str | None) -> None:
        """Add the earliest start of the same window; None means that no start was found."""
        self.earliest_start = start
        self.detail += (
            " No later start was found." if start is None else f" The reservation fits from {start} on."
        )

    def add_latest_end(self, end: str, claims: int) -> None:
        """Add the latest end until which the same claims have places together."""
        self.latest_end = end
        subject = "claim" if claims == 1 else "claims"
        self.detail += f" The {subject} may end at {end} at the latest."

    def add_shifts(self, earliest_start: str | None, latest_end: str | None, sentence: str) -> None:
        """Add the earliest start of the same claims without an end time, and their latest end time from now.

        :param sentence: the times as text.
        """
        self.earliest_start, self.latest_end = earliest_start, latest_end
        self.detail += sentence


class EndTooLate(Conflict):
    """The resources of a window, or of a claim, are not free until its new end: 409.

    The answer contains the latest possible end, unless the database did not answer the search for it.
    """

    def __init__(self, detail: str, latest_end: str | None) -> None:
        super().__init__(detail, END_TOO_LATE)
        self.latest_end = latest_end


class Gone(ServiceError):
    """The cursor in the request refers to changes that are no longer known: 410."""


RETRY_AFTER: Final = "5"
"""Seconds after which a client should send a refused request again, if the length of an outage is unknown."""


class Unavailable(ServiceError):
    """The database or another server does not answer, or it refuses the requests of this service: 503."""


class TransactionConflict(Unavailable):
    """Another transaction has made a query fail; the same request can succeed at once: 503."""
