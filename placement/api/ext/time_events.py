"""The resource ``/ext/v1/time_events``: starts and ends of reservations, and ends of claims."""

from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation, next_links
from placement.api.context import EXT
from placement.api.ext.reservations import visible_project
from placement.db.clock import server_time
from placement.policies import ext as rules
from placement.schemas.time_events import parse_events
from placement.store.time_events import list_events
from placement.store.time_profile import iso_time

blueprint = Blueprint("ext_time_events", __name__)

PATH: Final = f"{EXT}/time_events"


@api_operation(blueprint, "GET", PATH, None, writes_json=True)
def list_interval(call: ApiRequest) -> Response:
    """List the events in an interval.

    A caller without the right to see all projects gets the events of its own project.
    """
    page = parse_events(call.query_parameters, call.version)
    project_id = visible_project(call, rules.LIST_TIME_EVENTS, page.project_id)
    with call.service.database.read() as conn:
        # the clock is read before the tables, so that the tables contain all writes from before this time
        now = server_time(conn)
        interval = page.interval_at(now, project_id)
        # one more event than the limit of the page is read, to find out whether there is a next page
        found = list_events(conn, interval, page.after, page.limit + 1)
    shown = found[: page.limit]
    until = iso_time(interval.until)
    document: dict[str, Any] = {
        "now": iso_time(now),
        "until": until,
        "events": [each.to_document() for each in shown],
    }
    if len(found) > page.limit:
        last = shown[-1].position
        following = {
            "since": iso_time(interval.since),
            "until": until,
            "notice": page.notice,
            "limit": page.limit,
            # the marker has the float itself, because the text of a time is rounded
            "marker": f"{last.instant}_{last.kind}_{last.consumer}",
            "project_id": page.project_id,
        }
        document["links"] = next_links(PATH, following)
    return call.json_answer(document)
