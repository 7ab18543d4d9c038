"""The version document at ``/ext/v1``. It needs no token, and shows clients that the service has this API."""

from typing import Final

from flask import Blueprint, Response

from placement.api.call import ApiRequest, mount_prefix
from placement.api.context import EXT
from placement.conf import installed_version

VERSION: Final = "1.27"
"""The version of the API ``/ext/v1``. The minor number grows with each addition; nothing is ever removed."""

# the release is read only once: after an upgrade of the package, a running worker still runs its old release
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
