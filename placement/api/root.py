"""``/``: which versions there are. The only operation that needs no token."""

import time

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest

blueprint = Blueprint("root", __name__)


@blueprint.get("/", provide_automatic_options=False)
def versions() -> Response:
    """The version document."""
    document = {
        "id": "v1.0",
        "max_version": microversion.text(microversion.MAX),
        "min_version": microversion.text(microversion.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return ApiRequest().answer({"versions": [document]}, time.time())
