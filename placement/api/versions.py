"""The version document at ``/``, which lists the microversions that this service supports."""

import time

from flask import Blueprint, Response

from placement import microversion
from placement.api.call import ApiRequest

blueprint = Blueprint("root", __name__)


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
