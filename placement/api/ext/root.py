"""``/ext/v1``: by which a client finds out that there is an API of our own. Needs no token, like ``/``."""

from typing import Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, prefix
from placement.api.paths import EXT

VERSION: Final = "1.15"
"""Grows by a minor one whenever there is more below ``/ext/v1``; what was there stays as it is."""

blueprint = Blueprint("ext", __name__)


@blueprint.get(EXT, provide_automatic_options=False)
def show() -> Response:
    """The version document."""
    document = {
        "id": "v1",
        "max_version": VERSION,
        "min_version": "1.0",
        "status": "CURRENT",
        "links": [{"rel": "self", "href": prefix() + EXT}],
    }
    return ApiRequest().answer({"version": document})
