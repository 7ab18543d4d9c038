"""The query string of ``GET /ext/v1/changes``."""

from dataclasses import dataclass
from typing import Final

from placement import microversion
from placement.microversion import Microversion
from placement.schemas.base import StrictSchema, StringField
from placement.schemas.terms import Params, load_query, since_version
from placement.store.changes import ChangeCursor

MAX_PROVIDERS: Final = 1000
"""Maximum number of changed providers that one answer lists."""
_ALWAYS: Final = since_version(microversion.INITIAL)


class _ChangesQuery(StrictSchema):
    """The parameters of ``GET /ext/v1/changes``."""

    since = StringField(metadata=_ALWAYS)
    wait = StringField(
        pattern="^([0-9]|[1-5][0-9]|60)$", meaning="a number of seconds from 0 to 60", metadata=_ALWAYS
    )
    limit = StringField(pattern="^[1-9][0-9]{0,3}$", meaning="a number from 1 to 9999", metadata=_ALWAYS)


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
        # a limit above the maximum is no error, so that clients need not know the maximum
        min(MAX_PROVIDERS, int(values.get("limit", MAX_PROVIDERS))),
    )
