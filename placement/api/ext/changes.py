"""The resources that programs follow: changes since a cursor, and events at times.

``/ext/v1/changes`` lists changes of providers, and can wait for the first change. ``/ext/v1/time_events``
lists starts and ends of reservations, and ends of claims.
"""

import time
from dataclasses import asdict
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation, next_links
from placement.api.context import EXT
from placement.api.ext.reservations import visible_project
from placement.db.clock import server_time
from placement.db.position import DatabaseVersion
from placement.exceptions import RETRY_AFTER
from placement.policies import ext as rules
from placement.schemas.query import ChangesFollowing, parse_following
from placement.schemas.reservation import parse_events
from placement.store import changes as store
from placement.store.changes import ProviderChanges
from placement.store.time_events import list_events
from placement.store.time_profile import iso_time

blueprint = Blueprint("ext_changes", __name__)

_EVENTS_PATH: Final = f"{EXT}/time_events"

# each query reads only the version of the database, as before every answer
_PAUSE: Final = 0.25
"""Seconds between two queries of a request that waits for a change."""


@api_operation(blueprint, "GET", f"{EXT}/changes", rules.CHANGES, writes_json=True)
def list_since(call: ApiRequest) -> Response:
    """List the changes since a cursor. If the request has no cursor, the answer has a first one."""
    wanted = parse_following(call.query_parameters, call.version)
    waiting = call.service.waiting
    if wanted.wait == 0 or wanted.since is None:
        return _changes_answer(call, _find_changes(call, wanted, call.service.database.position()))
    # only a limited number of requests can wait, so that threads remain free for other requests
    if not waiting.acquire(blocking=False):
        response = _changes_answer(call, _find_changes(call, wanted, call.service.database.position()))
        response.headers["Retry-After"] = RETRY_AFTER
        return response
    try:
        return _changes_answer(call, _wait(call, wanted))
    finally:
        waiting.release()


def _wait(call: ApiRequest, wanted: ChangesFollowing) -> ProviderChanges:
    """Return changes as soon as there are any. After the time that the client waits, return no changes."""
    end = time.monotonic() + wanted.wait
    while True:
        # the version is read before the changes. If a change occurs in between, the loop below ends at once.
        before = call.service.database.position()
        found = _find_changes(call, wanted, before)
        if found.providers or found.deleted or found.more:
            return found
        # as long as nothing changes, only this small query runs
        while time.monotonic() < end and call.service.database.position() == before:
            time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
            # if the client has disconnected, its request must not occupy one of the few places for waiting
            # requests
            call.check_awaited()
        if time.monotonic() >= end:
            return found


def _find_changes(call: ApiRequest, wanted: ChangesFollowing, position: DatabaseVersion) -> ProviderChanges:
    with call.service.database.read() as conn:
        # a client without a cursor first gets a cursor. It then reads everything with other requests, and
        # afterwards asks for changes since the cursor.
        if wanted.since is None:
            return ProviderChanges(store.current_cursor(conn, position.history))
        return store.changes_since(conn, position.history, wanted.since, wanted.limit)


def _changes_answer(call: ApiRequest, found: ProviderChanges) -> Response:
    document: dict[str, Any] = {
        "cursor": str(found.cursor),
        "more": found.more,
        "deleted_resource_providers": list(found.deleted),
        "resource_providers": [
            {
                "uuid": each.uuid,
                "generation": each.generation,
                "changed": "description" if each.described else "usage",
                "consumers": [asdict(holder) for holder in each.holders],
            }
            for each in found.providers
        ],
    }
    return call.json_answer(document)


@api_operation(blueprint, "GET", _EVENTS_PATH, None, writes_json=True)
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
        document["links"] = next_links(_EVENTS_PATH, following)
    return call.json_answer(document)
