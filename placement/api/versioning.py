"""``/``, which shows the versions; the microversion of a request, and what every answer says about it.

Source: "Microversions" in the API reference: the header is
``OpenStack-API-Version: placement 1.39``; without it the version is 1.0.
"""

import time
from typing import Final

from flask import Blueprint, Flask, Response, g, request
from werkzeug.exceptions import BadRequest

from placement import microversion
from placement.api.call import ApiRequest
from placement.api.errors import UnacceptableVersion
from placement.microversion import Microversion

_HEADER: Final = "OpenStack-API-Version"
_SERVICE: Final = "placement"

blueprint = Blueprint("root", __name__)


def install(app: Flask) -> None:
    """Find out the version before everything else; name it in every answer."""
    app.before_request(_find)
    app.after_request(_tell)


def parse(header: str | None) -> Microversion:
    """The version that the header asks for.

    :raises BadRequest: it is not a version.
    :raises UnacceptableVersion: it is one that this service does not speak.
    """
    asked = _of_placement(header) if header else None
    if asked is None:
        return microversion.MIN
    if asked == "latest":
        return microversion.MAX
    try:
        major, minor = asked.split(".")
        version = (int(major), int(minor))
    except ValueError:
        raise BadRequest(f"invalid version string: {asked}") from None
    if not microversion.MIN <= version <= microversion.MAX:
        raise UnacceptableVersion(f"Unacceptable version header: {asked}")
    return version


def _of_placement(header: str) -> str | None:
    """What a header like ``compute 2.1, placement 1.30`` says about this service, the last time it does."""
    asked = None
    for part in header.split(","):
        service, *version = part.split(maxsplit=1)[:2] or [""]
        if service.lower() == _SERVICE and version:
            asked = version[0].strip()
    return asked


def _find() -> None:
    g.version = parse(request.headers.get(_HEADER))


def _tell(response: Response) -> Response:
    if "version" in g:
        response.headers[_HEADER] = f"{_SERVICE} {microversion.text(g.version)}"
    if response.headers.get("Vary") is None:  # response.vary would take twenty times as long to find out
        response.headers["Vary"] = _HEADER.lower()
    else:
        response.vary.add(_HEADER.lower())
    return response


@blueprint.get("/", provide_automatic_options=False)
def versions() -> Response:
    """The version document; the only operation of OpenStack Placement that needs no token."""
    document = {
        "id": "v1.0",
        "max_version": microversion.text(microversion.MAX),
        "min_version": microversion.text(microversion.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return ApiRequest().answer({"versions": [document]}, time.time())
