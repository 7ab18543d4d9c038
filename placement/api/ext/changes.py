"""The resource ``/ext/v1/changes``, which lists changes since a cursor, and can wait for the first change."""

import time
from dataclasses import asdict
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT
from placement.db.position import DatabaseVersion
from placement.exceptions import RETRY_AFTER
from placement.policies import ext as rules
from placement.schemas.query import ChangesFollowing, parse_following
from placement.store import changes as store
from placement.store.changes import ProviderChanges

blueprint = Blueprint("ext_changes", __name__)

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
