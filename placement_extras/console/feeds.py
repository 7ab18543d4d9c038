"""The resource ``/ext/v1/reservation_calendar``: the secret address of a project's calendar.

The address contains a *secret* of 256 random bits, and needs no token. The database has only a digest of the
secret. A project has at most one address; a new one replaces the former one.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, api_operation
from placement.api.context import EXT, SECRETS
from placement.exceptions import Conflict, NotFound
from placement.store.time_profile import iso_time
from placement_extras.console import rules, sessions

LOG = logging.getLogger(__name__)

blueprint = Blueprint("ext_reservation_calendar", __name__)

PATH: Final = f"{EXT}/reservation_calendar"


@api_operation(blueprint, "GET", PATH, None, writes_json=True)
def show_feed(call: ApiRequest) -> Response:
    """Show when the address of a project was made. The answer does not have the address."""
    project = call.asked_project(rules.SHOW_FEED)
    with call.service.database.read() as conn:
        created_at = sessions.find_feed(conn, project)
    if created_at is None:
        raise _no_feed(project)
    return call.json_answer({"calendar": _feed_document(project, created_at)})


@api_operation(blueprint, "POST", PATH, None, writes_json=True)
def make_feed(call: ApiRequest) -> Response:
    """Make the address of a project. Only this answer has the address. A former address is revoked."""
    project = call.asked_project(rules.MAKE_FEED)
    if not call.service.conf.console.enabled:
        raise Conflict("The console serves calendars, and is not enabled ([console] enabled).")
    secret = sessions.new_secret()
    created_at = call.service.database.write(lambda tx: sessions.replace_feed(tx, project, secret))
    LOG.info("A new calendar address of the project %s was made, and a former one is revoked", project)
    path = f"{SECRETS}{secret}.ics"
    document = _feed_document(project, created_at) | {"url": call.root_url + path}
    return call.add_location(call.json_answer({"calendar": document}, status=201), path)


@api_operation(blueprint, "DELETE", PATH, None)
def revoke_feed(call: ApiRequest) -> Response:
    """Revoke the address of a project."""
    project = call.asked_project(rules.REVOKE_FEED)
    if not call.service.database.write(lambda tx: sessions.delete_feed(tx, project)):
        raise _no_feed(project)
    LOG.info("The calendar address of the project %s was revoked", project)
    return call.empty_answer()


def _feed_document(project: str, created_at: float) -> dict[str, Any]:
    return {"project_id": project, "created_at": iso_time(created_at)}


def _no_feed(project: str) -> NotFound:
    return NotFound(f"The project {project} has no calendar address.")
