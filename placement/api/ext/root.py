"""The version document at ``/ext/v1``. A client detects our own API by it, without a token."""

from typing import Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, mount_prefix
from placement.api.paths import EXT
from placement.conf import installed_version

VERSION: Final = "1.16"
"""The version: its minor number grows with each addition below ``/ext/v1``, and nothing is removed."""

# read once: a worker that still runs during an upgrade is of its own version
_RELEASE: Final = installed_version()

blueprint = Blueprint("ext", __name__)


@blueprint.get(EXT, provide_automatic_options=False)
def show_version() -> Response:
    """Show the version document."""
    document = {
        "id": "v1",
        "max_version": VERSION,
        "min_version": "1.0",
        "status": "CURRENT",
        "links": [{"rel": "self", "href": mount_prefix() + EXT}],
        "release": _RELEASE,
    }
    return ApiRequest().json_answer({"version": document})
