"""The microversion of a request, and what every answer says about it.

Source: "Microversions" in the API reference: the header is
``OpenStack-API-Version: placement 1.39``; without it the version is 1.0.
"""

import re
from typing import Final

from flask import Flask, Response, g, request
from werkzeug.exceptions import BadRequest

from placement import microversion
from placement.api.errors import UnacceptableVersion
from placement.microversion import Microversion

_HEADER: Final = "OpenStack-API-Version"
_SERVICE: Final = "placement"
_NUMBER: Final = re.compile(r"([1-9]\d{0,5}|0)\.([1-9]\d{0,5}|0)")


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
    match = _NUMBER.fullmatch(asked)
    if not match:
        raise BadRequest(f"invalid version string: {asked}")
    version = (int(match[1]), int(match[2]))
    if not microversion.MIN <= version <= microversion.MAX:
        raise UnacceptableVersion(f"Unacceptable version header: {asked}")
    return version


def _of_placement(header: str) -> str | None:
    """What a header like ``compute 2.1, placement 1.30`` says about this service."""
    for part in header.split(","):
        service, _, version = part.strip().partition(" ")
        if service.lower() == _SERVICE:
            return version.strip().lower()
    return None


def _find() -> None:
    g.version = parse(request.headers.get(_HEADER))


def _tell(response: Response) -> Response:
    response.headers[_HEADER] = f"{_SERVICE} {microversion.text(g.get('version', microversion.MIN))}"
    response.vary.add(_HEADER.lower())
    return response
