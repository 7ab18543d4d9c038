"""The body of ``POST /ext/v1/availability``."""

from typing import Any, Final

from placement.schemas.base import BooleanField, IntegerField
from placement.schemas.claim import parse_time, time_field
from placement.schemas.joint_claims import JointSchema, parse_joint
from placement.schemas.request_form import RequestForms
from placement.schemas.reservation import MAX_MARGIN
from placement.search.claims.claim import WantedClaim
from placement.search.claims.window_search import WantedTime
from placement.store.consumers import ConsumerOwnership
from placement.store.reservations import TYPE
from placement.store.time_profile import WindowMargins

MAX_DURATION: Final = 10 * 366 * 86_400
"""Maximum duration of a window in seconds: ten years."""
MAX_WINDOWS: Final = 100
"""Maximum number of windows in an answer."""


class AvailabilityBody(JointSchema):
    """One or several requests for candidates, with the duration and the possible times of a window."""

    duration = IntegerField(1, MAX_DURATION, required=True)
    not_before = time_field()
    deadline = time_field()
    lead_time = IntegerField(0, MAX_MARGIN, load_default=0)
    cleaning_time = IntegerField(0, MAX_MARGIN, load_default=0)
    limit = IntegerField(1, MAX_WINDOWS, load_default=5)
    explain = BooleanField(load_default=False)


def wanted_of(body: dict[str, Any], forms: RequestForms) -> list[WantedClaim]:
    """Return claims of new reservations for the requests in a body; the claims are never written.

    :param forms: the registered forms of requests, such as flavors.
    :raises InvalidRequest: a query, a flavor or a topology is wrong, or there are too many claims.
    """
    return parse_joint(body, forms, "", ConsumerOwnership("", "", TYPE))


def margins_of(body: dict[str, Any]) -> WindowMargins:
    """Return the lead time and the cleaning time in a body."""
    return WindowMargins(body["lead_time"], body["cleaning_time"])


def time_of(body: dict[str, Any]) -> WantedTime:
    """Return the time of the window that a body asks for, including the lead and the cleaning time.

    :raises InvalidRequest: a date does not exist.
    """
    margins = margins_of(body)
    begin, end = (
        None if body[name] is None else parse_time(body[name], name) for name in ("not_before", "deadline")
    )
    return WantedTime(
        margins.lead + body["duration"] + margins.cleaning,
        None if begin is None else begin - margins.lead,
        None if end is None else end + margins.cleaning,
    )
