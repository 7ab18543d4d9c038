"""The version document at ``/``, and the microversion of requests and answers.

The rules come from "API Versions" in the OpenStack Placement API reference. A request states its microversion
in a header: ``OpenStack-API-Version: placement 1.39``. Without this header, the version is 1.0.
"""

import time
from functools import cache, lru_cache
from typing import Final

from flask import Blueprint, Flask, Response, request
from werkzeug.exceptions import BadRequest

from placement import microversion
from placement.api.call import VERSION, ApiRequest, check_body_headers
from placement.api.errors import UnacceptableVersion
from placement.microversion import Microversion

_HEADER: Final = "OpenStack-API-Version"
_VARIABLE: Final = "HTTP_OPENSTACK_API_VERSION"
"""The key of the header in the WSGI environment."""
_SERVICE: Final = "placement"

blueprint = Blueprint("root", __name__)


def install_versions(app: Flask) -> None:
    """Find the version of each request before its handler runs, and show the version in each answer."""
    app.before_request(_check_headers)
    app.after_request(_add_version)


# most requests have one of few versions; the cache is limited, because a client can send any header
@lru_cache(maxsize=256)
def parse(header: str | None) -> Microversion:
    """Return the version in the header.

    :raises BadRequest: the header is not a version.
    :raises UnacceptableVersion: this service does not support the version.
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
    """Return the last version for Placement in a header: 1.30 in ``compute 2.1, placement 1.30``."""
    asked = None
    for part in header.split(","):
        service, *version = part.split(maxsplit=1)[:2] or [""]
        # the loop continues after a version, because the last version for Placement counts
        if service.lower() == _SERVICE and version:
            asked = version[0].strip()
    return asked


@cache
def _version_text(version: Microversion) -> str:
    return f"{_SERVICE} {microversion.text(version)}"


def _check_headers() -> None:
    environ = request.environ
    environ[VERSION] = parse(environ.get(_VARIABLE))
    # the version is found first, because the form of an error depends on it
    check_body_headers(environ)


def _add_version(response: Response) -> Response:
    headers = response.headers
    # if the version of the request is not supported, the answer shows no version
    if (version := request.environ.get(VERSION)) is not None:
        headers.add(_HEADER, _version_text(version))
    # the header is added directly, because the attribute ``response.vary`` would take twenty times as long
    if not headers.getlist("Vary"):
        headers.add("Vary", _HEADER.lower())
    else:
        response.vary.add(_HEADER.lower())
    return response


@blueprint.get("/", provide_automatic_options=False)
def show_versions() -> Response:
    """Show the version document. Of OpenStack Placement's operations, only this one needs no token."""
    document = {
        "id": "v1.0",
        "max_version": microversion.text(microversion.MAX),
        "min_version": microversion.text(microversion.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return ApiRequest().json_answer({"versions": [document]}, time.time())
