"""The query string of ``GET /ext/v1/changes``."""

from dataclasses import dataclass

from placement.microversion import Microversion
from placement.schemas.base import StrictSchema, StringField
from placement.schemas.terms import PageLimit, Params, load_query
from placement.store.changes import ChangeCursor


class _ChangesQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/changes``."""

    since = StringField()
    wait = StringField(pattern="^([0-9]|[1-5][0-9]|60)$", meaning="a number of seconds from 0 to 60")
    limit = PageLimit()


@dataclass(frozen=True, slots=True)
class ChangesFollowing:
    """A request for changes: a cursor (None asks for a first one), seconds to wait, and a limit."""

    since: ChangeCursor | None
    wait: float
    limit: int


def parse_following(params: Params, version: Microversion) -> ChangesFollowing:
    """Parse the query string of a request for changes, or raise :class:`InvalidRequest`."""
    values = load_query(_ChangesQuery, params, version)
    return ChangesFollowing(
        ChangeCursor.parse(values["since"]) if "since" in values else None,
        float(values.get("wait", 0)),
        values["limit"],
    )
